import pytest

from mesa_seg.saved import Policy


def test_rules_pick_by_kind_index_and_name_and_the_later_wins():
    policy = Policy.from_config(dict(bits=8, rules=[
        dict(kind='fc', bits=4, granularity='block'),
        dict(kind=['fc', 'conv'], index=[0, 2], enable=False),
        dict(name='head.*', bits=2),
    ]))
    assert policy.layer('fc', 1, 'a').bits == 4
    assert policy.layer('fc', 2, 'a') is None and policy.layer('conv', 0, 'b') is None
    assert policy.layer('conv', 1, 'head.conv').bits == 2
    assert policy.layer('gelu', 0, 'a').bits == 8


def test_a_rule_can_switch_on_no_more_than_the_whole_does():
    policy = Policy.from_config(dict(enable=False, rules=[dict(kind='fc', enable=True)]))
    assert policy.layer('fc', 0, 'a') is None


def test_only_some_kinds_can_be_switched_on():
    policy = Policy.from_config(dict(rules=[dict(name='*', enable=False), dict(kind='gelu', enable=True)]))
    assert policy.layer('fc', 0, 'a') is None and policy.layer('gelu', 0, 'a') is not None


@pytest.mark.parametrize('mesa,words', [
    (dict(bit=8), ['bit', 'bits']),
    (dict(bits=5), ['bits=5', '8, 4 or 2']),
    (dict(enable='yes'), ["enable='yes'", 'True or False']),
    (dict(rules=dict(kind='fc')), ['rules', 'list']),
    (dict(rules=[dict(kind='linear', bits=4)]), ["kind='linear'", 'fc']),
    (dict(rules=[dict(kind='fc', bits=3)]), ['bits=3']),
    (dict(rules=[dict(kind='fc')]), ['rules[0]', 'changes nothing']),
    (dict(rules=[dict(index=1, bits=4)]), ['rules[0]', 'kind']),
    (dict(rules=[dict(kind='fc', index='1', bits=4)]), ["index='1'"]),
    (dict(rules=[dict(kind='fc', bitz=4)]), ["'bitz'", 'rules[0]']),
    ('8 bits', ["'8 bits'", 'dict']),
], ids=str)
def test_a_mistake_is_named(mesa, words):
    with pytest.raises(ValueError) as error:
        Policy.from_config(mesa)
    assert all(word in str(error.value) for word in words), str(error.value)
