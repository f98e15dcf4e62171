"""Plans and catalogue entries as rich renderables. Nothing here prints or decides; ``cli`` owns the console."""
