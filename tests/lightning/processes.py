"""Training and predicting in real processes: run as a script, it leaves what each rank saw in files.

Importing everything takes longer than training. So each rank is forked from this process, which has imported all and
used nothing: no thread, no socket, no tensor.
"""

import json
import os
import signal
import socket
import sys
import time
import warnings
import zlib
from pathlib import Path

import kornia.augmentation as K  # noqa: N812 - as everybody writes it
import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import geostream as gs
from geostream.datamodule import GeoDataModule
from geostream.prediction import PredictionWriter
from geostream.samplers import RandomGeoSampler
from geostream.testing.rasters import scene, write_cog

SIDE, CHIP, BATCH, LENGTH = 72, 16, 4, 52
"""Pixels of a scene and of a chip, chips in a batch and in an epoch: 13 batches, which no number of ranks divides."""
SCENES = {"a": (SIDE, SIDE), "b": (SIDE, 2 * SIDE), "c": (45, 83)}


class Images(gs.RasterDataset):
    filename_glob = "*.tif"


class Labels(gs.RasterDataset):
    filename_glob = "*.tif"
    is_image = False


class Model(pl.LightningModule):
    """Learns the mask, and writes down every batch."""

    def __init__(self, out, halt_at=None):
        super().__init__()
        torch.manual_seed(7)
        self.net = torch.nn.Conv2d(2, 1, 3, padding=1)
        self.out, self.halt_at, self.seen = out, halt_at, []

    def training_step(self, batch, _):
        if self.global_step == self.halt_at:
            (self.out / f"halted-{self.global_rank}").touch()
            time.sleep(100)
        image, mask, valid = batch["image"], batch["mask"], batch["mask_valid"]
        assert torch.equal((image[:, 0] * 255).round().long(), mask), "image and mask stay together"
        assert valid.all()
        self.seen.append(
            {
                "epoch": self.current_epoch,
                "places": batch["bounds"][:, [0, 4]].tolist(),
                "pixels": zlib.crc32(image.numpy().tobytes()),
                "transform": zlib.crc32(batch["transform"].numpy().tobytes()),
            }
        )
        return torch.nn.functional.mse_loss(self.net(image)[:, 0], mask.float() / 255)

    def validation_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    def predict_step(self, batch, _):
        return batch["image"]


def write_data(folder):
    for i, (name, shape) in enumerate(SCENES.items()):
        data = scene(*shape, 2, seed=i, dtype="uint8")
        place = gs_place(i)
        write_cog(folder / "images" / f"{name}.tif", data, transform=place, blocksize=128, overviews=False)
        write_cog(folder / "labels" / f"{name}.tif", data[:1], transform=place, blocksize=128, overviews=False)


def gs_place(i):
    from affine import Affine

    return Affine(10, 0, 600_000 + 20_000 * i, 0, -10, 5_300_000)


def module(folder, **options):
    def pairs():
        return Images(folder / "images", dtype="native", valid=True) & Labels(folder / "labels", valid=True)

    turns = K.AugmentationSequential(K.RandomHorizontalFlip(p=0.5), K.RandomVerticalFlip(p=0.5))
    basics = {"patch_size": CHIP, "batch_size": BATCH, "length": LENGTH, "train_aug": turns}
    return GeoDataModule(train=pairs, **{**basics, **options})


def runner(ranks, folder, **options):
    return pl.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        use_distributed_sampler=options.pop("inject", False),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        num_sanity_val_steps=0,
        **{"enable_checkpointing": False, **options},
    )


def train(folder, out, ranks, rank, sampler="batch", halt_at=None, resume=None, save=False):
    torch.manual_seed(100 + (0 if resume is None else 1))  # a process that goes on has other random numbers
    data = module(folder, sampler=sampler, val=lambda: Images(folder / "images" / "a.tif"))
    keep = ModelCheckpoint(out, every_n_train_steps=3, save_top_k=-1, filename="{step}")
    model = Model(out, halt_at)
    trainer = runner(ranks, out, max_epochs=3, callbacks=[keep] if save else [], enable_checkpointing=save)
    trainer.fit(model, datamodule=data, ckpt_path=resume, weights_only=None if resume is None else True)
    weights = [zlib.crc32(p.detach().numpy().tobytes()) for p in model.parameters()]
    return {"seen": model.seen, "weights": weights, "steps": trainer.global_step}


def estimate(folder, out, ranks, rank):
    """Statistics are estimated by one rank, and all have them."""
    data = module(folder, mean="auto", std="auto", predict=lambda: Images(folder / "images"))
    before = gs.stats()
    runner(ranks, out).predict(Model(out), datamodule=data, return_predictions=False)
    return {"state": data.state_dict(), "read": (gs.stats() - before).bytes}


def predict(folder, out, ranks, rank):
    writer = PredictionWriter(out / f"written-{ranks}", progress=False, blocksize=128)
    data = GeoDataModule(
        predict=lambda: Images(folder / "images"), patch_size=32, batch_size=3, predict_stride=20, mean=0.0, std=1.0
    )
    runner(ranks, out, callbacks=[writer]).predict(Model(out), datamodule=data, return_predictions=False)
    return {"written": [path.name for path in writer.written]}


def refused(folder, out, ranks, rank):
    """A trainer that injects its sampler: with whole batches, with single places, and around a lone loader."""
    messages = []
    dataset = Images(folder / "images")
    loader = gs.DataLoader(dataset, sampler=RandomGeoSampler(dataset, CHIP, LENGTH))
    try:
        runner(ranks, out, inject=True, max_epochs=1).fit(Model(out), train_dataloaders=loader)
    except gs.ConfigError as error:
        messages.append(str(error))
    for sampler in ("batch", lambda dataset: RandomGeoSampler(dataset, CHIP, LENGTH)):
        try:
            runner(ranks, out, inject=True, max_epochs=1).fit(Model(out), datamodule=module(folder, sampler=sampler))
        except gs.ConfigError as error:
            messages.append(str(error))
    return {"messages": messages}


JOBS = {"train": train, "predict": predict, "refused": refused, "estimate": estimate}


def start(name, folder, out, ranks, *arguments, **options):
    """Fork the ranks of a job; (process ids, where the ranks' results will be)."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children, results = [], []
    for rank in range(ranks):
        results.append(out / f"{rank}.json")
        child = os.fork()
        if child == 0:
            become_rank(JOBS[name], folder, out, ranks, rank, port, options)
        children.append(child)
    return children, results


def become_rank(job, folder, out, ranks, rank, port, options):
    code = 1
    try:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0"}
        os.environ |= {"LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)} if ranks > 1 else {}
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        result = job(folder, out, ranks, rank, **options)
        (out / f"{rank}.json").write_text(json.dumps(result))
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it is, the parent must hear of it
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def run(name, folder, out, ranks, **options):
    """The results of a job's ranks."""
    out.mkdir(parents=True, exist_ok=True)
    children, results = start(name, folder, out, ranks, **options)
    codes = [os.waitpid(child, 0)[1] for child in children]
    assert not any(codes), f"{name} with {ranks} ranks failed"
    return [json.loads(path.read_text()) for path in results]


def run_and_kill(folder, out, ranks, halt_at):
    """Train up to a step, and kill all ranks in the middle of it."""
    out.mkdir()
    children, _ = start("train", folder, out, ranks, halt_at=halt_at, save=True)
    deadline = time.monotonic() + 60
    while not all((out / f"halted-{rank}").exists() for rank in range(ranks)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for child in children:
        os.kill(child, signal.SIGKILL)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def main(folder):
    write_data(folder)
    results = {f"train-{ranks}": run("train", folder, folder / f"t{ranks}", ranks) for ranks in (1, 2, 4)}
    results["tile-2"] = run("train", folder, folder / "tile", 2, sampler="tile")
    results["tile-1"] = run("train", folder, folder / "tile1", 1, sampler="tile")
    for ranks in (1, 2):
        results[f"predict-{ranks}"] = run("predict", folder, folder / f"p{ranks}", ranks)
        killed = folder / f"killed{ranks}"
        results[f"codes-{ranks}"] = run_and_kill(folder, killed, ranks, halt_at=11)
        last = str(killed / "step=9.ckpt")
        results[f"resumed-{ranks}"] = run("train", folder, folder / f"r{ranks}", ranks, resume=last)
    results["refused-2"] = run("refused", folder, folder / "refused", 2)
    results["estimate-2"] = run("estimate", folder, folder / "estimate", 2)
    (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
