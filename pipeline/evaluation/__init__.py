"""What stored weights do: tested anew on the test images, probed, compared with their training, and kept as long as nothing changed."""
