// Package layout is the arithmetic of LVM: on which devices a volume lies in
// which layout, how much can be made of what is free, and what LVM calls the
// devices that a volume is made of.
//
// It is pure: it runs nothing, reads nothing and keeps nothing.
//
// Vocabulary
//
//	extent      the unit of carving; every size here counts extents
//	Run         a range of extents of one device
//	Free        what can be allocated on one device
//	Share       what a volume takes of one device
//	unit        how many extents of a volume one extent on each of its devices is
//	component   a hidden volume that another one is made of: an image, the
//	            bookkeeping of one, a pool's data or metadata
//
// Invariant: what Largest says can be placed, Place places, and LVM makes; the
// suites of lvmtest hold the real LVM and the fake to it.
//
// Callers: pkg/lvm, pkg/lvmd, and the fake.
package layout
