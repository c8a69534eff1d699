// Package apierror has the errors that lvmd's callers see: a gRPC code, an ErrorInfo with a
// reason of api/names, and a message. It is the only place that maps errors to codes; the
// table is in api/lvmd/v1/lvmd.proto.
//
// Its functions make an error where the cause is found. From maps all others at the end of a
// call.
package apierror
