// Package spec defines volumes as requested and as stored: requests and their validation, the
// resulting identity with its LVM tags, the differences of two identities, and the record of a
// volume.
//
// It does no I/O and takes no locks. Its functions are pure, except those that generate ids. Its
// errors are those of apierror.
package spec
