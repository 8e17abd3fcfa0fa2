"""A configuration of containerd's as a user has written it, and the names of the plugin for pods in its versions."""

V2, V3 = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
CONTAINERD = f"""version = 2  # ours
[plugins."{V2}"]
  sandbox_image = "registry/pause:3.9"   # mirrored
  [plugins."{V2}".containerd]
    default_runtime_name = "runc"
    [plugins."{V2}".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."{V2}".containerd.runtimes.runc.options]
        SystemdCgroup = true
"""
