"""Where a task comes from, so that it can be made again: a data set by name, or a user's own files."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from difformer.data import DataError, Task, dataset_options, from_files, load
from difformer.errors import UserError


@dataclass(frozen=True)
class TaskSource:
    """A recipe for a task.

    Args:
        name: A data set of `difformer.data.load`; None for own files.
        root: Folder to search for its files first.
        options: Of the data set, or of `difformer.data.from_files`.
        files: Own files by role: ``{"features": …, "labels": …, "edges": …}``; kept as absolute paths.
    """

    name: str | None = None
    root: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.name is None) == (not self.files):
            raise UserError("a task comes either from a data set by name or from files: give one of name and files")
        paths = {role: os.path.abspath(os.fspath(path)) for role, path in self.files.items()}
        object.__setattr__(self, "files", paths)
        object.__setattr__(self, "options", dict(self.options))
        if self.root is not None:
            object.__setattr__(self, "root", os.path.abspath(os.fspath(self.root)))

    def load(self) -> Task:
        """The task.

        Raises:
            DataError: If a file is no longer there or cannot be read.
        """
        if self.name is not None:
            return load(self.name, self.root, **self.options)
        for role, path in self.files.items():
            if not Path(path).exists():
                raise DataError(
                    f"the file with the {role} is no longer there; put it back or, if it was moved, correct its place "
                    f"in the run folder's config.toml, [data.source.files], {role} = … (the name of the file must be "
                    f"the same; that it holds what the run was trained on is checked)",
                    path=path,
                )
        arguments: dict[str, Any] = {**self.files, **self.options}
        if unknown := sorted(arguments.keys() - inspect.signature(from_files).parameters.keys()):
            raise DataError(f"from_files has no option {unknown[0]!r}; correct config.toml, [data.source]")
        return from_files(**arguments)

    def complete(self) -> TaskSource:
        """The same with every option that was left out at its default."""
        if self.name is not None:
            defaults = dataset_options(self.name)
        else:
            parameters = inspect.signature(from_files).parameters.values()
            defaults = {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
        return replace(self, options={**defaults, **self.options})

    def to_dict(self) -> dict[str, Any]:
        """As ``config.toml`` has it."""
        return {"name": self.name, "root": self.root, "options": dict(self.options), "files": dict(self.files)}

    @staticmethod
    def from_dict(table: Mapping[str, Any]) -> TaskSource:
        return TaskSource(table.get("name"), table.get("root"), table.get("options") or {}, table.get("files") or {})
