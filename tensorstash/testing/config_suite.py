"""The duties of a description that configurations can name: of a codec, or of a store."""

import dataclasses
import os
import pickle
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, ClassVar

import pytest

from tensorstash import registry, stores
from tensorstash.config import from_dict, to_dict
from tensorstash.errors import ConfigError


class ConfigSuite:
    """The part that the suites of codecs and stores share.

    Attributes:
        is_registered: whether configurations know it by name.
        refused: fields, by name, with values that must be refused when it is built.
    """

    is_registered: ClassVar[bool] = True
    refused: ClassVar[tuple[Mapping[str, object], ...]] = ()
    protocol: ClassVar[type]
    group: ClassVar[str]
    attribute: ClassVar[tuple[str, tuple[str, ...]]]
    """The attribute that says how it may be used, and its values."""

    policy: ClassVar[type[Any]]
    """The policy that uses it."""

    def config(self, directory: str) -> Any:
        """Return the description under test; ``directory`` is empty, and removed after the test."""
        raise NotImplementedError(f"{type(self).__name__} defines config(directory)")

    def test_it_is_a_frozen_keyword_only_dataclass(self, tmp_path: os.PathLike[str]) -> None:
        described = self.config(os.fspath(tmp_path))
        kind: Any = type(described)
        assert isinstance(described, self.protocol)
        name, values = self.attribute
        assert getattr(described, name) in values
        assert dataclasses.is_dataclass(described), f"{described!r} is no dataclass"
        for field in dataclasses.fields(described):
            assert field.kw_only, f"the field {field.name} is not keyword-only"
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(described, field.name, getattr(described, field.name))
        with pytest.raises(TypeError):
            kind(no_such_field=1)

    def test_a_value_that_cannot_be_is_refused_with_its_path(self, tmp_path: os.PathLike[str]) -> None:
        described = self.config(os.fspath(tmp_path))
        for fields in self.refused:
            with pytest.raises(ConfigError, match=rf"^{described.name}\.({'|'.join(fields)}): got "):
                type(described)(**fields)

    def test_its_configuration_round_trips_and_opens_nothing(self, tmp_path: os.PathLike[str]) -> None:
        described, again = self.config(os.fspath(tmp_path)), self.config(os.fspath(tmp_path))
        assert described == again
        assert hash(described) == hash(again)
        names = {**vars(stores), type(described).__name__: type(described)}
        assert eval(repr(described), names) == described
        assert pickle.loads(pickle.dumps(described)) == described == deepcopy(described)
        if self.is_registered:
            assert registry.lookup(self.group, described.name) is type(described)
            policy = self.policy(described)
            assert from_dict(to_dict(policy)) == policy
        assert os.listdir(tmp_path) == [], "a description has made files"
