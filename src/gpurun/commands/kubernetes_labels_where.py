"""Where the labels of kubernetes labels go: to the node itself, into a NodeFeature object, or into a file."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Mapping

from gpurun import log
from gpurun.commands.kubernetes_options import node_name
from gpurun.errors import GpurunError, UsageError, strerror_lower
from gpurun.invocation import Invocation
from gpurun.kubernetes.config import PluginConfig
from gpurun.kubernetes.extra import need
from gpurun.kubernetes.labels import FEATURES_FILE, others_of, patch_of, write_features

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.kubernetes.api import Api
    from gpurun.kubernetes.node_feature import NodeFeature

_STAMP = "nvidia.com/gfd.timestamp"
#: Looks after which the node is asked for its labels though ours are as they were: another client may have changed them.
_ASK_AGAIN = 10


class NodeLabels:
    """The labels of the node *name* in the API server."""

    def __init__(self, api: Api, name: str) -> None:
        self._api, self._name = api, name
        self._written: dict[str, str] = {}
        self._looks = 0

    def set(self, wanted: dict[str, str], makers: tuple[str, ...]) -> None:
        """Have the node carry *wanted*, the labels of the GPUs of *makers*: asked for only after a change, and now and then.

        Raises :class:`GpurunError`.
        """
        meant = {name: text for name, text in wanted.items() if name != _STAMP}
        self._looks -= 1
        if self._looks > 0 and meant == self._written:
            return
        self._looks, self._written = 0, {}
        metadata = self._api.node(self._name)["metadata"]
        changes = patch_of(metadata.get("labels") or {}, wanted, makers, others_of(metadata))
        if set(changes) - {_STAMP}:
            self._api.label_node(self._name, changes)
            log.info(f"node {self._name}: {len(changes)} labels changed")
        self._looks, self._written = random.randint(_ASK_AGAIN // 2, _ASK_AGAIN), meant


class Where:
    """Where the labels go, by the options, else by the configuration, as that is at each time.

    Raises :class:`UsageError` for options that exclude each other.
    """

    def __init__(self, invocation: Invocation, env: Mapping[str, str]) -> None:
        self._invocation, self._env = invocation, env
        patch, self._output = invocation.flag("patch-node"), invocation.option("output-file")
        if patch and self._output:
            raise UsageError(
                "--patch-node and --output-file exclude each other: label the node, or write a file for Node Feature "
                "Discovery"
            )
        feature = invocation.flag("use-node-feature-api")
        if feature and (patch or self._output):
            raise UsageError(
                "--use-node-feature-api excludes --patch-node and --output-file: Node Feature Discovery writes the labels"
            )
        # None of the three: the configuration says it.
        self._open = not patch and not self._output and "use-node-feature-api" not in invocation.options
        self._node: NodeLabels | None = None
        self._feature: NodeFeature | None = None
        self._file = ""
        self._overruled = False
        if patch:
            self._node = NodeLabels(self._api(), node_name(invocation))
        elif feature:
            self._feature = self._object()

    def set(self, config: PluginConfig, labels: dict[str, str], makers: tuple[str, ...]) -> None:
        """Write *labels*, which tell of the GPUs of *makers*; what was written elsewhere before is taken back.

        Raises :class:`GpurunError`.
        """
        if config.node_feature_api and not self._open and self._feature is None and not self._overruled:
            log.warning("useNodeFeatureAPI of the configuration is not obeyed: an option says where the labels go")
            self._overruled = True
        if self._node is not None:
            self._node.set(labels, makers)
        elif config.node_feature_api if self._open else self._feature is not None:
            self._feature = self._feature or self._object()
            self._feature.set(labels, makers)
            self.end()
        else:
            path = self._output or config.output_file or FEATURES_FILE
            if path != self._file:
                self.end()
            write_features(path, labels)
            self._file = path
            if self._feature is not None:
                self._feature.set({}, makers)
                self._feature = None

    def end(self) -> None:
        """Remove the file, as GPU feature discovery does: a node whose labels are no longer maintained has none.

        Raises :class:`GpurunError`.
        """
        path, self._file = self._file, ""
        if path and path != "-":
            try:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            except OSError as e:
                raise GpurunError(f"remove {path}: {strerror_lower(e.errno or 0)}") from None

    def _api(self) -> Api:
        need("kubernetes")
        from gpurun.kubernetes.api import connect

        return connect(self._invocation.option("kubeconfig"))

    def _object(self) -> NodeFeature:
        from gpurun.kubernetes.node_feature import NodeFeature

        namespace = self._invocation.option("namespace", self._env.get("NAMESPACE", ""))
        return NodeFeature(self._api(), node_name(self._invocation), self._invocation.option("daemonset"), namespace)
