"""An OCI bundle as a program sees it: read, checked, planned and explained, with nothing made."""

from __future__ import annotations

import json
import os
from typing import Any

from gpurun.engine.caller.bundle import CreateOptions, plan_config, read_document
from gpurun.errors import ConfigError, GpurunError
from gpurun.images.bundle import BundleRequest, make_bundle, site_labels
from gpurun.images.unpack import MAX_SIZE, Limits
from gpurun.library.arguments import words
from gpurun.library.explanation import sections
from gpurun.library.validation import check_text
from gpurun.linux.files import write_atomically
from gpurun.oci.config import read_config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpurun.engine.plan.container import Plan
    from gpurun.oci.schema import Problem


#: What external programs are looked up in, when the caller gives no PATH.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Bundle:
    """A directory with a config.json and a root file system (OCI runtime specification, "Filesystem Bundle").

    *path* is absolute; :attr:`warnings` are those of :meth:`from_image`.  *config* is the document, which may be changed:
    :meth:`validate`, :meth:`plan` and :meth:`explain` are of the document as it is here, :meth:`save` writes it back for who
    runs the bundle.

    >>> bundle = Bundle("/tmp", {"ociVersion": "1.2.0", "root": {"path": "."}, "process": {"cwd": "/", "args": ["true"]}})
    >>> [problem.what for problem in bundle.validate() if problem.fatal]
    []
    >>> bundle.config["process"]["cwd"] = "relative"
    >>> [problem.where for problem in bundle.validate() if problem.fatal]
    ['process.cwd']
    """

    def __init__(self, path: str | os.PathLike[str], config: dict[str, Any], name: str = "config.json") -> None:
        self.path = os.path.abspath(path)
        self.config = config
        self.name = name
        self.warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<gpurun.Bundle {self.path!r}>"

    @classmethod
    def from_image(
        cls,
        source: str | os.PathLike[str],
        output: str | os.PathLike[str],
        *,
        command: Sequence[str] = (),
        tag: str = "",
        architecture: str = "",
        max_size: int = MAX_SIZE,
        environ: Mapping[str, str] | None = None,
    ) -> Bundle:
        """A bundle of an image, as ``gpurun bundle`` makes it, in the new directory *output* (docs/images.md).

        *source* is what skopeo takes (``docker://…``, ``oci:…``), or a path of a layout, an archive or a root.  *command*
        stands in place of the image's own, *tag* chooses among several images, *architecture* (Go's name) among several
        machines; *max_size* in bytes.  *environ* is the environment of skopeo and umoci, which has a PATH and nothing else
        by default.  :attr:`warnings` of the bundle say what of the image was left out.

        Raises :class:`gpurun.GpurunError`; then there is no *output*.
        """
        own = {"PATH": PATH} if environ is None else dict(environ)
        asked = BundleRequest(
            os.fspath(source),
            os.fspath(output),
            words(command, "command") if command else (),
            tag,
            architecture,
            Limits(max_size),
            site_labels(own),
        )
        warnings = make_bundle(asked, own)
        made = cls.load(output)
        made.warnings = warnings
        return made

    @classmethod
    def load(cls, path: str | os.PathLike[str], name: str = "config.json") -> Bundle:
        """The bundle in the directory *path*, whose document is the file *name* there.

        Raises :class:`gpurun.GpurunError` when the file cannot be read or is no JSON object; what else is wrong with it is
        :meth:`validate`'s to say.
        """
        file = os.path.join(os.path.abspath(path), name)
        try:
            data = read_document(file, name != "config.json")
        except OSError as e:
            raise GpurunError(f"{file}: {(e.strerror or '').lower()}") from None
        try:
            document = json.loads(data.decode("utf-8-sig"))
        except (ValueError, RecursionError) as e:
            raise ConfigError(file, f"is not valid JSON: {e}") from None
        if not isinstance(document, dict):
            raise ConfigError(file, "is not a JSON object")
        return cls(path, document, name)

    def save(self) -> None:
        """Write the document to its file, by rename; raises :class:`gpurun.GpurunError`."""
        file = os.path.join(self.path, self.name)
        try:
            write_atomically(file, self._text(), 0o666)
        except OSError as e:
            raise GpurunError(f"{file}: {(e.strerror or '').lower()}") from None

    def validate(self) -> tuple[Problem, ...]:
        """Every mistake in the document; a problem that is not *fatal* is something that would be ignored."""
        return check_text(self._text(), os.path.join(self.path, self.name), self.path)

    def plan(
        self,
        container_id: str = "ID",
        *,
        root: str = "/run/gpurun",
        cgroup_manager: str = "cgroupfs",
        environ: Mapping[str, str] | None = None,
    ) -> Plan:
        """What would be done to create the container *container_id*, on this host: frozen records.

        *root* is the state directory, *cgroup_manager* ``"cgroupfs"``, ``"systemd"`` or ``"disabled"``.  *environ* is what
        gpurun would see as its own environment (``GPURUN_…``, ``NVIDIA_CTK_…``); by default nothing.

        Raises :class:`gpurun.GpurunError` with what create would say.
        """
        options = CreateOptions(container_id, root, self.path, cgroup_manager=cgroup_manager, rootless="false")
        own = {os.fsencode(name): os.fsencode(value) for name, value in (environ or {}).items()}
        data = self._text()
        return plan_config(options, data, read_config(data), environ=own)[1]

    def explain(self, container_id: str = "ID", *, environ: Mapping[str, str] | None = None) -> dict[str, list[str]]:
        """:meth:`plan` in words, as ``gpurun explain`` prints it: title → lines, in the order of what would be done."""
        return sections(self.plan(container_id, environ=environ))

    def _text(self) -> bytes:
        return json.dumps(self.config, ensure_ascii=False).encode("utf-8", "surrogatepass")
