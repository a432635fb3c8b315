"""mmseg components, laid out as in mmseg; importing this package registers them."""
from .. import compat

compat.prepare()

from . import bricks  # noqa: E402, F401
from .backbones import *  # noqa: E402, F401, F403
from .decode_heads import *  # noqa: E402, F401, F403
from .losses import *  # noqa: E402, F401, F403
from .necks import *  # noqa: E402, F401, F403
from .segmentors import *  # noqa: E402, F401, F403
