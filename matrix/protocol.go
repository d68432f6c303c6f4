package matrix

// Sizes of a series (protocol §2.4, §3.3, §3.7), in blocks unless said otherwise. A superblock has two.
const (
	MinBlocks               = 6  // the first n with a distribution-free 95 % statement; below it nothing is ESTABLISHED
	MaxBlocks               = 12 // where the optional extension 6 → 8 → 10 → 12 ends
	MinConfirmingBlocks     = 4  // of a cell on another boot
	ConfirmationSuperblocks = 2  // superblocks that a confirming grid runs
)
