// Package layout is the arithmetic of LVM: where volumes lie, how much fits into the free
// extents, and how LVM names devices. It runs nothing, reads nothing and keeps nothing.
//
// Vocabulary
//
//	Run         a range of extents of one device
//	Free        the allocatable extents of one device
//	Share       the extents that a volume takes of one device
//	unit        the extents of a volume that one extent on each of its devices holds
//	component   a hidden volume below another one: an image, its bookkeeping, a pool's
//	            data or metadata
//
// Sizes are in extents.
//
// Invariant: Place places what Largest calculates, and LVM creates it; the suites of lvmtest
// hold the real LVM and the fake to it.
package layout
