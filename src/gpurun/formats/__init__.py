"""Files and texts of others, bytes in and records out: pure, and nothing of gpurun but its errors."""
