// Package zeroed keeps which extents of a volume group are known to hold zeroes, so that they
// need not be cleared again. A Set is a set of bytes; a Map has one for each physical volume.
//
// It is arithmetic: what it says is true as long as its caller accounts for all that happens to
// the group, see Map.
package zeroed
