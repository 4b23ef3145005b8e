r"""`lerobot-train` as it is, with data read by seqlake: one line puts the drop-in class in the place of lerobot's own.

    python examples/lerobot_training.py --dataset.repo_id=lerobot/pusht --dataset.root=PATH --policy.type=act ...

Every argument is lerobot-train's. It needs lerobot and seqlake in one environment; the folder may be of v2.0, v2.1 or
v3.0, which lerobot of today refuses to read but for the last. Signals are decoded once, into the user's cache; frames
are found by number. On a machine without a GPU and a network, a few steps of ACT take seconds:

    HF_HUB_OFFLINE=1 python examples/lerobot_training.py --dataset.repo_id=local/arm --dataset.root=PATH \
        --policy.type=act --policy.pretrained_backbone_weights=null --policy.device=cpu --policy.push_to_hub=false \
        --wandb.enable=false --eval_freq=0 --save_checkpoint=false --num_workers=0 --batch_size=2 --steps=2
"""

from __future__ import annotations

from lerobot.datasets import factory
from lerobot.scripts import lerobot_train

from seqlake.compat.lerobot import LeRobotDataset


def main() -> None:
    """What lerobot-train does."""
    factory.LeRobotDataset = LeRobotDataset  # this line is all
    lerobot_train.main()


if __name__ == "__main__":
    main()
