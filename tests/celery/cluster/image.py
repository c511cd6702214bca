"""Build an image of the reference application for nodes in containers."""

import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.packaging.environments import build
from tests.support.paths import ROOT

DOCKERFILE: Final = """\
FROM python:3.12-slim
WORKDIR /app
COPY . .
RUN pip install --quiet *.whl
"""


def build_image(engine: Any) -> str:
    """Build the image with the wheel of this checkout on *engine*, a docker client; return its id."""
    with tempfile.TemporaryDirectory(prefix="image-") as name:
        folder = Path(name)
        build(folder, ROOT, "--wheel")
        shutil.copytree(ROOT / "tasks", folder / "tasks", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "celeryconfig.py", folder)
        (folder / "Dockerfile").write_text(DOCKERFILE)
        image, _ = engine.images.build(path=name, tag="redis-queue-tasks", rm=True)
        return str(image.id)
