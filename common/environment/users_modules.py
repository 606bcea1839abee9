"""A user's own modules: found in the current folder, and not shadowed by this project's.

`--env myenvs:Valve-v0` imports `myenvs`, which may lie where the command was typed, and may import
a `utils` of its own. This project's modules are imported by bare names too.
"""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from common.files import ROOT


def make_way(module: str) -> None:
    """Let the next import of `module` find it, from the current folder too, and all it imports.

    Its folder comes first on the path. Modules of this project that its folder has by the same name
    are forgotten: whatever uses them holds them already.
    """
    places = [str(Path.cwd()), *(place for place in sys.path if not _is_ours(Path(place)))]
    found = PathFinder.find_spec(module.partition(".")[0], places)
    folder = _folder(found) if found else None
    if folder is None or {"site-packages", "dist-packages"} & {*folder.parts}:
        return
    if _is_ours(folder):
        sys.path.append(str(folder))
        return
    sys.path[:] = [str(folder), *(place for place in sys.path if place != str(folder))]
    ours = {name for name in sys.modules if _is_this_projects(name)}
    hidden = {name for name in ours if PathFinder.find_spec(name, [str(folder)])}
    for name in [*sys.modules]:
        if name.partition(".")[0] in hidden:
            del sys.modules[name]


def _folder(spec: ModuleSpec) -> Path | None:
    """Where a module or package lies."""
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve().parent
    return Path(spec.origin).resolve().parent if spec.has_location and spec.origin else None


def _is_ours(folder: Path) -> bool:
    """Whether it is the repository, or one of its folders of modules."""
    folder = folder.resolve()
    return folder == ROOT or (folder.parent == ROOT and folder.name.endswith("_BCQ"))


def _is_this_projects(name: str) -> bool:
    """Whether a module by this name, which has been imported, is this project's own."""
    file = getattr(sys.modules[name], "__file__", None)
    if not file or "." in name or name == "__main__":
        return False
    path = Path(file).resolve()
    return _is_ours(path.parent.parent if path.name == "__init__.py" else path.parent)
