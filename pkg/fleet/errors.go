package fleet

import (
	"errors"
	"fmt"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carve-csi/carve/api/names"
)

// NotConnectedError means that a node has no uplink. The call was not sent.
type NotConnectedError struct {
	Node string
}

func (e *NotConnectedError) Error() string {
	return fmt.Sprintf("node %s is not connected to the carve controller", e.Node)
}

// IsNotConnected reports whether err is a NotConnectedError.
func IsNotConnected(err error) bool {
	var e *NotConnectedError
	return errors.As(err, &e)
}

// NoPlaceError means that the node stayed at its limit of calls of that kind until the caller's
// context ended. The call was not sent.
type NoPlaceError struct {
	// Cause is the error of the call's context.
	Cause error
}

func (e *NoPlaceError) Error() string {
	return fmt.Sprintf("the call was not sent within its time, as at most %d of its kind are under way to a node; nothing was done (%v)", callsOfAKind, e.Cause)
}

// Unwrap returns the error of the call's context.
func (e *NoPlaceError) Unwrap() error { return e.Cause }

// GRPCStatus returns the code of the context's error.
func (e *NoPlaceError) GRPCStatus() *status.Status {
	return status.New(status.FromContextError(e.Cause).Code(), e.Error())
}

// NotSent reports whether err means that the call never left for the node.
func NotSent(err error) bool {
	var noPlace *NoPlaceError
	return IsNotConnected(err) || errors.As(err, &noPlace)
}

// Reason returns lvmd's own reason for an error (names.Reason…), or "" for errors that arose on the
// way to lvmd.
func Reason(err error) string {
	s, ok := status.FromError(err)
	if !ok {
		return ""
	}
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == names.ErrorDomain {
			return info.GetReason()
		}
	}
	return ""
}

// tooLarge reports whether gRPC rejected a message for its size. lvmd's own ResourceExhausted has a
// reason.
func tooLarge(err error) bool {
	return status.Code(err) == codes.ResourceExhausted && Reason(err) == ""
}

// MayHaveHappened reports whether a call that returned err may have had effect on the node, or
// still may: its answer was lost or unreadable, it timed out, or another operation on the same
// volume runs. Errors that lvmd returned after the operation ended are final.
func MayHaveHappened(err error) bool {
	if err == nil {
		return true
	}
	if NotSent(err) {
		return false
	}
	s, ok := status.FromError(err)
	if !ok {
		return true // not from the node: unknown
	}
	switch s.Code() {
	case codes.Unavailable, codes.Internal, codes.ResourceExhausted, codes.DataLoss:
		// lvmd's errors have a reason and are final. gRPC's own mean a broken connection or an
		// answer that is too large or malformed: the node may have acted.
		return Reason(err) == ""
	case codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.Unknown:
		return true
	default:
		return false
	}
}

// Message returns the text of an error for users: lvmd's words without gRPC's wrapping.
func Message(err error) string {
	if s, ok := status.FromError(err); ok && s.Code() != codes.OK {
		return s.Message()
	}
	return err.Error()
}
