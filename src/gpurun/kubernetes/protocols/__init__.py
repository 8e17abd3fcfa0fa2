"""The protocols that the kubelet speaks, as gRPC: our own .proto files, and what `tools/generate-protocols` makes of them."""
