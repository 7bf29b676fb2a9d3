"""Data files that come with the package: the small trained model of the demo."""
