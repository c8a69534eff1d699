// Package spec has what volumes are asked for as, and how it is kept: requests and their
// validation, the identity that comes of one, its LVM tags, the differences of two, and the
// record of a volume.
//
// It does no I/O and takes no locks: its functions depend on their arguments alone, but for
// those that make ids. Its errors are those of apierror.
package spec
