"""Planning: arithmetic from two layouts and a shape to what one rank does."""
