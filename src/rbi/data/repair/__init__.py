"""What the Atari Grand Challenge data lacks or has wrong, found on the screens: lives, scores, offsets."""
