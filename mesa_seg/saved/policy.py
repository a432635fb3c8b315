"""The ``mesa=dict(...)`` of a config: settings for all layers, and rules that change them for some."""
import fnmatch
from dataclasses import dataclass, replace

from .quantizer import QuantizerConfig

# Mesa's tags (arXiv 2111.11124, the published code's policy files), and the kinds that Mesa-Seg adds.
KINDS = ('fc', 'conv', 'gelu', 'bn', 'relu', 'softmax', 'matmul', 'layernorm', 'attention', 'dropout', 'pool',
         'activation', 'norm', 'block')


@dataclass(frozen=True)
class Rule:
    """Changes settings for the layers that match all the conditions given.

    Attributes:
        kinds: kinds of layer, empty for all.
        indices: positions among the layers of that kind, in the model's order; empty for all.
        names: shell patterns over the module's name from the converted model; empty for all.
        changes: settings to change: ``enable`` and the fields of :class:`QuantizerConfig`.
    """
    kinds: tuple[str, ...]
    indices: tuple[int, ...]
    names: tuple[str, ...]
    changes: dict

    def matches(self, kind, index, name):
        return ((not self.kinds or kind in self.kinds) and (not self.indices or index in self.indices)
                and (not self.names or any(fnmatch.fnmatchcase(name, pattern) for pattern in self.names)))


def _several(value, what, kind):
    values = tuple(value) if isinstance(value, (list, tuple, range)) else (value, )
    for v in values:
        if not isinstance(v, kind) or isinstance(v, bool):
            raise ValueError(f'mesa: {what}={value!r}: expected {kind.__name__} or a list of {kind.__name__}')
    if not values:
        raise ValueError(f'mesa: {what}={value!r}: expected at least one {kind.__name__}')
    return values


def _check_keys(settings, known, where):
    for key in settings:
        if key not in known:
            raise ValueError(f'{where}: unknown key {key!r}; known keys are {", ".join(known)}')


def _switch(value, where):
    if not isinstance(value, bool):
        raise ValueError(f'{where}: enable={value!r}: expected True or False')
    return value


@dataclass(frozen=True)
class Policy:
    """What to do with each layer.

    Attributes:
        enable: False leaves every layer as it is.
        reuse: False makes each operation keep a copy of its own, and leaves windows of attention to mmseg's composition (for
            comparison; the benchmark's ``mesa_published`` also quantises what is kept within it).
        config: settings of every layer.
        rules: exceptions; the later one wins.
    """
    enable: bool = True
    reuse: bool = True
    config: QuantizerConfig = QuantizerConfig()
    rules: tuple[Rule, ...] = ()

    @classmethod
    def from_config(cls, mesa):
        """Read ``mesa=dict(...)``.

        Args:
            mesa (Policy | dict | None): keys ``enable``, ``reuse``, the fields of :class:`QuantizerConfig`, and
                ``rules``: a list of dicts with the conditions ``kind``, ``index``, ``name`` and the settings to change.

        Raises:
            ValueError: for an unknown key or an impossible value, naming it.
        """
        if isinstance(mesa, cls):
            return mesa
        if mesa is None:
            return cls()
        if not isinstance(mesa, dict):
            raise ValueError(f'mesa={mesa!r}: expected a dict')
        mesa = dict(mesa)
        fields = QuantizerConfig.keys()
        _check_keys(mesa, ('enable', 'reuse', *fields, 'rules'), 'mesa')
        enable = _switch(mesa.pop('enable', True), 'mesa')
        reuse = mesa.pop('reuse', True)
        if not isinstance(reuse, bool):
            raise ValueError(f'mesa: reuse={reuse!r}: expected True or False')
        rules = mesa.pop('rules', None) or ()
        if not isinstance(rules, (list, tuple)):
            raise ValueError(f'mesa: rules={rules!r}: expected a list of dicts')
        config = QuantizerConfig(**mesa)
        return cls(enable, reuse, config, tuple(cls._rule(i, rule, config) for i, rule in enumerate(rules)))

    @staticmethod
    def _rule(position, rule, config):
        where = f'mesa.rules[{position}]'
        if not isinstance(rule, dict):
            raise ValueError(f'{where}={rule!r}: expected a dict')
        rule = dict(rule)
        fields = QuantizerConfig.keys()
        _check_keys(rule, ('kind', 'index', 'name', 'enable', *fields), where)
        kinds = _several(rule.pop('kind'), f'{where}.kind', str) if 'kind' in rule else ()
        for kind in kinds:
            if kind not in KINDS:
                raise ValueError(f'{where}: kind={kind!r}: expected one of {", ".join(KINDS)}')
        indices = _several(rule.pop('index'), f'{where}.index', int) if 'index' in rule else ()
        names = _several(rule.pop('name'), f'{where}.name', str) if 'name' in rule else ()
        if indices and not kinds:
            raise ValueError(f'{where}: index counts the layers of a kind: name the kind, too')
        if 'enable' in rule:
            _switch(rule['enable'], where)
        if not rule:
            raise ValueError(f'{where}: it changes nothing; give enable or one of {", ".join(fields)}')
        replace(config, **{k: v for k, v in rule.items() if k != 'enable'})  # checks the values now, not at a layer
        return Rule(kinds, indices, names, rule)

    def layer(self, kind, index, name):
        """QuantizerConfig | None: a layer's settings; None leaves it as it is."""
        enable, config = self.enable, self.config
        for rule in self.rules:
            if rule.matches(kind, index, name):
                changes = dict(rule.changes)
                enable = changes.pop('enable', enable) and self.enable
                config = replace(config, **changes)
        return config if enable else None
