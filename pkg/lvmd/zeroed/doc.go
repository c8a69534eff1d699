// Package zeroed records which extents of a volume group hold zeroes, so that they need not be
// cleared again. A Set is a set of bytes; a Map has one for each physical volume.
//
// It is arithmetic: its caller must account for all that happens to the group, see Map.
package zeroed
