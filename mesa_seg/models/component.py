"""What makes a Mesa component of an mmseg class: the same constructor, and conversion at its end."""
from mmengine.logging import print_log

from ..nn import MesaRoot, convert


class MesaComponent(MesaRoot):
    """Mixed in front of an mmseg backbone, neck or head. It takes the class's own arguments and ``mesa``.

    Args:
        mesa (dict, optional): see :class:`mesa_seg.saved.Policy`; 8 bits, head-wise by default, ``dict(enable=False)`` for
            the stock component.
    """

    def __init__(self, *args, mesa=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.mesa_conversion = convert(self, mesa)
        if self.mesa_enabled:
            print_log(f'{type(self).__name__}: {self.mesa_conversion}', 'current')
