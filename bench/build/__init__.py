"""What a clean build costs with nothing cached: as it was, file by file with g++, and as it is."""

TARGETS = []
PARTS = ["clean", "release"]
