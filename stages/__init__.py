"""What runs in the images: one program a stage. Never imports `trainwright.flows`."""
