"""A building that exists only in memory: floor plan, textures, light, people, drives, camera."""
