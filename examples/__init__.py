"""The published variants, a .la file each: `lacc new NAME --from gla` begins with one."""
