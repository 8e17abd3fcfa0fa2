"""Why a pod waits for a GPU: what the API server knows of it, as sentences; pure."""
