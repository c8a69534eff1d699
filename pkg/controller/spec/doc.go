// Package spec interprets StorageClasses and claims.
//
// It turns a StorageClass into a Class and a claim of it into a Request: device class, size, file
// system and its settings, encryption, Secret, data source. Errors are *InvalidError, which
// describe the field, its value and the allowed values for users. The package has no I/O, locks or
// time.
//
// Callers: all other packages of the controller.
package spec
