"""Where measurements are kept for the next process."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """Returns the user's cache folder, or $CHECKMATE_CACHE_DIR where that is set; it need not be
    there yet."""
    return Path(os.environ.get("CHECKMATE_CACHE_DIR") or platformdirs.user_cache_dir("checkmate"))
