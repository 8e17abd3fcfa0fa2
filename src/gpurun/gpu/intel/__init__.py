"""Intel's GPUs under i915 and xe, and its Gaudi accelerators."""
