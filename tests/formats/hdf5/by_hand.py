"""HDF5 as the projects write it: the calls of their own recorders, over numbers of a seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

CAMERAS = ("cam_high", "cam_low", "cam_left_wrist")
LENGTHS = (7, 5, 9)


def picture(seed: int, steps: int, *, size: tuple[int, int] = (24, 32)) -> NDArray[np.uint8]:
    """[steps, H, W, 3] that differ from step to step."""
    ramp = np.add.outer(np.arange(size[0]), np.arange(size[1]))[None, ..., None]
    shift = np.arange(steps)[:, None, None, None] * 9 + seed * 17 + np.arange(3) * 40
    return ((ramp * 2 + shift) % 256).astype(np.uint8)


def aloha(folder: Path, *, lengths: tuple[int, ...] = LENGTHS, sim: bool = True, effort: bool = False) -> Path:
    """As `record_sim_episodes.py` of ACT writes episodes: raw pictures, a chunk each."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, steps in enumerate(lengths):
        rng = np.random.default_rng(number)
        with h5py.File(folder / f"episode_{number}.hdf5", "w", rdcc_nbytes=1024**2 * 2) as root:
            root.attrs["sim"] = sim
            obs = root.create_group("observations")
            image = obs.create_group("images")
            for place, name in enumerate(CAMERAS):
                image.create_dataset(name, (steps, 24, 32, 3), dtype="uint8", chunks=(1, 24, 32, 3))
                image[name][...] = picture(number * 3 + place, steps)
            for name in ("qpos", "qvel", *(["effort"] if effort else [])):
                obs.create_dataset(name, (steps, 14), "f4")[...] = rng.normal(size=(steps, 14))
            root.create_dataset("action", (steps, 14), "f4")[...] = rng.normal(size=(steps, 14))
    return folder


def jpeg(array: NDArray[np.uint8]) -> bytes:
    from simplejpeg import encode_jpeg

    data: bytes = encode_jpeg(np.ascontiguousarray(array), quality=60)
    return data


def aloha_packed(folder: Path, *, lengths: tuple[int, ...] = LENGTHS) -> dict[tuple[int, str], list[bytes]]:
    """As ALOHA's `record_episodes.py` with COMPRESS: JPEG padded to the longest; gives what was packed."""
    folder.mkdir(parents=True, exist_ok=True)
    packed: dict[tuple[int, str], list[bytes]] = {}
    for number, steps in enumerate(lengths):
        for place, name in enumerate(CAMERAS):
            packed[number, name] = [jpeg(one) for one in picture(number * 3 + place, steps)]
        longest = max(len(one) for name in CAMERAS for one in packed[number, name])
        with h5py.File(folder / f"episode_{number}.hdf5", "w") as root:
            root.attrs["sim"] = False
            root.attrs["compress"] = True
            obs = root.create_group("observations")
            image = obs.create_group("images")
            for name in CAMERAS:
                rows = np.zeros((steps, longest), "uint8")
                for step, one in enumerate(packed[number, name]):
                    rows[step, : len(one)] = np.frombuffer(one, np.uint8)
                image.create_dataset(name, (steps, longest), dtype="uint8", chunks=(1, longest))[...] = rows
            for name in ("qpos", "qvel", "effort"):
                obs.create_dataset(name, (steps, 14), "f4")[...] = np.full((steps, 14), number + 0.5)
            root.create_dataset("action", (steps, 14), "f4")[...] = np.arange(steps * 14).reshape(steps, 14)
            root.create_dataset("base_action", (steps, 2), "f4")[...] = 1
            root.create_dataset("compress_len", (len(CAMERAS), steps), "f4")[...] = [
                [len(one) for one in packed[number, name]] for name in CAMERAS
            ]
    return packed


def robomimic(
    path: Path,
    *,
    lengths: tuple[int, ...] = (6, 4, 8),
    images: bool = True,
    compression: str | None = "gzip",
    instruction: str | None = None,
    masks: bool = True,
) -> Path:
    """As robomimic's `dataset_states_to_obs.py` writes demonstrations; with an instruction as LIBERO has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        for number, steps in enumerate(lengths):
            rng = np.random.default_rng(number + 100)
            demo = data.create_group(f"demo_{number}")
            demo.create_dataset("actions", data=rng.uniform(-1, 1, (steps, 7)))
            demo.create_dataset("states", data=rng.normal(size=(steps, 32)))
            demo.create_dataset("rewards", data=np.eye(1, steps, steps - 1)[0])
            demo.create_dataset("dones", data=np.eye(1, steps, steps - 1, dtype=np.int64)[0])
            for group in ("obs", "next_obs"):
                keys: dict[str, Any] = {
                    "robot0_eef_pos": rng.normal(size=(steps, 3)),
                    "object": rng.normal(size=(steps, 10)),
                }
                if images:
                    keys["agentview_image"] = picture(number, steps, size=(16, 16))
                    keys["agentview_depth"] = rng.random((steps, 16, 16, 1), np.float32)
                for key, values in keys.items():
                    demo.create_dataset(f"{group}/{key}", data=values, compression=compression)
            demo.attrs["model_file"] = f"<mujoco model='{number}'/>"
            demo.attrs["num_samples"] = steps
        data.attrs["total"] = sum(lengths)
        data.attrs["env_args"] = json.dumps(
            {"env_name": "Lift", "type": 1, "env_version": "1.4.1", "env_kwargs": {"control_freq": 20}}
        )
        if instruction is not None:
            data.attrs["problem_info"] = json.dumps({"problem_name": "libero", "language_instruction": instruction})
            data.attrs["bddl_file_name"] = "pick.bddl"
        if masks:
            file.create_dataset("mask/train", data=np.array(["demo_0", "demo_2"], dtype="S"))
            file.create_dataset("mask/valid", data=np.array(["demo_1"], dtype="S"))
            file.create_dataset("mask/20_percent", data=np.array(["demo_0"], dtype="S"))
    return path


def droid(folder: Path, *, lengths: tuple[int, ...] = (5, 7), films: bool = True) -> Path:
    """As DROID's `TrajectoryWriter` grows data sets, step by step, beside videos and a JSON."""
    import av

    for number, steps in enumerate(lengths):
        episode = folder / "success" / "2023-07-07" / f"Fri_Jul__7_09:42:2{number}_2023"
        (episode / "recordings" / "MP4").mkdir(parents=True)
        serials = {
            camera: str(11110000 + number * 10 + place) for place, camera in enumerate(("wrist", "ext1", "ext2"))
        }
        rng = np.random.default_rng(number)
        with h5py.File(episode / "trajectory.h5", "w") as file:
            for _ in range(steps):
                grow(
                    file,
                    {
                        "action": {"cartesian_position": rng.normal(size=6), "gripper_position": float(rng.random())},
                        "observation": {
                            "robot_state": {"joint_positions": list(rng.normal(size=7))},
                            "timestamp": {"robot_state": {"read_start": int(rng.integers(1 << 40))}},
                            "camera_extrinsics": {f"{serial}_left": rng.normal(size=6) for serial in serials.values()},
                            "controller_info": {"success": bool(rng.random() > 0.5)},
                        },
                    },
                )
            file.attrs["current_task"] = f"Put the cup on shelf {number}"
            file.attrs["success"] = True
        notes = {
            "uuid": f"AUTOLab+{number}",
            "trajectory_length": steps,
            **{f"{camera}_cam_serial": serial for camera, serial in serials.items()},
            **{f"{camera}_mp4_path": f"success/x/recordings/MP4/{serial}.mp4" for camera, serial in serials.items()},
        }
        (episode / f"metadata_AUTOLab+{number}.json").write_text(json.dumps(notes))
        for place, serial in enumerate(serials.values() if films else ()):
            with av.open(episode / "recordings" / "MP4" / f"{serial}.mp4", "w") as container:
                stream = container.add_stream("libx264", rate=15, width=32, height=32, pix_fmt="yuv420p")
                for frame in picture(place, steps, size=(32, 32)):
                    container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
                container.mux(stream.encode(None))
    return folder


def grow(file: Any, step: dict[str, Any]) -> None:
    """One time step, as `write_dict_to_hdf5` of DROID appends it."""
    for key, value in step.items():
        values = np.array(value) if isinstance(value, list) else value
        if isinstance(values, dict):
            grow(file.require_group(key), values)
            continue
        shape = values.shape if isinstance(values, np.ndarray) else ()
        dtype = values.dtype if isinstance(values, np.ndarray) else type(values)
        if key not in file:
            file.create_dataset(key, (1, *shape), maxshape=(None, *shape), dtype=dtype)
        else:
            file[key].resize(file[key].shape[0] + 1, axis=0)
        file[key][-1] = values
