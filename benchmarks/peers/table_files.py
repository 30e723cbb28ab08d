"""The same episodes written by pandas, fastparquet, polars, DuckDB, Hugging Face datasets and Ray Data, and the sample
of the Open Bandit Dataset as OBP reads it, for tests/data/test_peers.py; runs in its own environment.

pip install pandas fastparquet polars duckdb datasets 'ray[data]'; pip install --no-deps obp     into .venv-peers
.venv-peers/bin/python benchmarks/peers/table_files.py FOLDER

Packages that are missing are left out; `versions.json` names those that wrote something.
"""

import importlib
import json
import logging
import shutil
import sys
from pathlib import Path

import numpy as np

LENGTHS, SIZE, ACTIONS = (4, 1, 3), 3, 5


def columns() -> dict[str, list]:
    """One row per step, the same every time, with no package but NumPy."""
    rng = np.random.default_rng(0)
    count = sum(LENGTHS)
    ends = np.isin(np.arange(count) + 1, np.cumsum(LENGTHS))
    actions = rng.integers(0, ACTIONS, count)
    actions[0] = ACTIONS - 1
    return {
        "episode_id": np.repeat([f"e{k}" for k in range(len(LENGTHS))], LENGTHS).tolist(),
        "t": np.concatenate([np.arange(length) for length in LENGTHS]).tolist(),
        **{f"obs_{k}": rng.normal(size=count).tolist() for k in range(SIZE)},
        "action": actions.tolist(),
        "reward": rng.normal(size=count).tolist(),
        "terminated": (ends & (np.arange(count) != LENGTHS[0] - 1)).tolist(),
        "truncated": (np.arange(count) == LENGTHS[0] - 1).tolist(),
    }


def episodes() -> list[dict]:
    """One row per episode, as imitation stores them: one more observation than steps."""
    rows, found, start = columns(), [], 0
    for length in LENGTHS:
        part = slice(start, start + length)
        seen = np.array([rows[f"obs_{k}"][part] for k in range(SIZE)]).T
        found.append({
            "obs": [*seen.tolist(), [0.0] * SIZE], "acts": rows["action"][part], "rews": rows["reward"][part],
            "terminal": rows["terminated"][start + length - 1],
        })  # fmt: skip
        start += length
    return found


def with_pandas(folder: Path) -> None:
    import pandas

    frame = pandas.DataFrame(columns())
    frame.to_csv(folder / "pandas.csv", index=False)
    frame.to_csv(folder / "pandas.csv.gz", index=False)
    frame.to_csv(folder / "pandas.tsv", index=False, sep="\t")
    frame.to_json(folder / "pandas.jsonl", orient="records", lines=True, double_precision=15)
    frame.to_parquet(folder / "pandas.parquet")
    frame.to_feather(folder / "pandas.feather")


def with_fastparquet(folder: Path) -> None:
    import fastparquet
    import pandas

    fastparquet.write(str(folder / "fastparquet.parquet"), pandas.DataFrame(columns()))


def with_polars(folder: Path) -> None:
    import polars

    frame = polars.DataFrame(columns())
    frame.write_csv(folder / "polars.csv")
    frame.write_parquet(folder / "polars.parquet")
    frame.write_ipc(folder / "polars.arrow")
    frame.write_ndjson(folder / "polars.ndjson")


def with_duckdb(folder: Path) -> None:
    import duckdb
    import pyarrow

    table = pyarrow.table(columns())  # noqa: F841 - DuckDB finds it by its name
    database = duckdb.connect()
    database.sql(f"COPY (SELECT * FROM table) TO '{folder}/duckdb.parquet'".replace("FROM table", 'FROM "table"'))
    database.sql(f"COPY (SELECT * FROM \"table\") TO '{folder}/duckdb.csv'")
    database.sql(
        f"COPY (SELECT * FROM \"table\") TO '{folder}/duckdb-hive' (FORMAT parquet, PARTITION_BY (episode_id))"
    )


def with_datasets(folder: Path) -> None:
    import datasets

    steps, rows = datasets.Dataset.from_dict(columns()), datasets.Dataset.from_list(episodes())
    steps.save_to_disk(folder / "datasets-disk")
    steps.to_parquet(folder / "datasets.parquet")
    steps.to_json(folder / "datasets.jsonl")
    rows.save_to_disk(folder / "datasets-episodes")
    rows.to_parquet(folder / "datasets-episodes.parquet")


def with_ray(folder: Path) -> None:
    import ray

    ray.init(num_cpus=1, include_dashboard=False, logging_level=logging.ERROR)
    rows = columns()
    seen = np.array([rows.pop(f"obs_{k}") for k in range(SIZE)]).T
    items = [{name: column[k] for name, column in rows.items()} | {"obs": seen[k]} for k in range(len(seen))]
    data = ray.data.from_items(items).repartition(1)
    data.write_parquet(str(folder / "ray-parquet"))
    ray.shutdown()


def with_obp(folder: Path) -> None:
    import obp
    from obp.dataset import OpenBanditDataset

    sample = Path(obp.__file__).parent / "dataset" / "obd"
    shutil.copy(sample / "random" / "all" / "all.csv", folder / "obp.csv")

    class WithoutContext(OpenBanditDataset):
        """OBP 0.4.1 prepares the context with a call that pandas 3 no longer has."""

        def pre_process(self) -> None:
            pass

    found = WithoutContext(behavior_policy="random", campaign="all")
    rows = found.data.index.to_numpy()  # OBP sorts by time
    np.savez(folder / "obp-truth.npz", row=rows, action=found.action, reward=found.reward, pscore=found.pscore)


PACKAGES = {
    "pandas": with_pandas, "fastparquet": with_fastparquet, "polars": with_polars, "duckdb": with_duckdb,
    "datasets": with_datasets, "ray": with_ray, "obp": with_obp,
}  # fmt: skip


def main(folder: Path) -> None:
    versions = {}
    for name, write in PACKAGES.items():
        try:
            package = importlib.import_module(name)
        except ImportError:
            continue
        write(folder)
        versions[name] = package.__version__
    (folder / "versions.json").write_text(json.dumps(versions))


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
