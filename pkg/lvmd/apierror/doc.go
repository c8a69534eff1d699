// Package apierror has the errors that lvmd's callers see: a gRPC code, an ErrorInfo with a reason
// of api/names, and a message. No other package maps errors to codes; api/lvmd/v1/lvmd.proto has
// the table.
//
// Most functions make an error where its cause is found. From maps all others at the end of a call.
package apierror
