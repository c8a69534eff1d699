// Package spec reads what a StorageClass and a claim ask for.
//
// It turns a StorageClass into a Class and a claim of it into a Request: the device class, the
// size, the file system and its settings, the encryption, the Secret, the data source. What is
// not allowed is an *InvalidError, which names the field, what it says and what may stand
// there, in words for the user. Everything here is pure: no I/O, no locks, no time.
//
// Callers: all other packages of the controller.
package spec
