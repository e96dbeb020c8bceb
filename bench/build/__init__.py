"""What a clean build costs with nothing cached: the former way, file by file with g++, and the present one."""

TARGETS = []
PARTS = ["clean", "release"]
