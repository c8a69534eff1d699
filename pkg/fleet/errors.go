package fleet

import (
	"errors"
	"fmt"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carve-csi/carve/api/names"
)

// NotConnectedError says that a node has no uplink at the moment. The call was
// not sent.
type NotConnectedError struct {
	Node string
}

func (e *NotConnectedError) Error() string {
	return fmt.Sprintf("node %s is not connected to the carve controller", e.Node)
}

// IsNotConnected reports whether the error is that of a call that was never sent, for want of
// a connection.
func IsNotConnected(err error) bool {
	var e *NotConnectedError
	return errors.As(err, &e)
}

// NoPlaceError says that as many calls of a kind were under way to a node as may be, until the time of
// another one was over. The call was not sent.
type NoPlaceError struct {
	// Cause is the error of the call's context.
	Cause error
}

func (e *NoPlaceError) Error() string {
	return fmt.Sprintf("the call was not sent within its time, as at most %d of its kind are under way to a node; nothing was done (%v)", callsOfAKind, e.Cause)
}

// Unwrap returns the error of the call's context.
func (e *NoPlaceError) Unwrap() error { return e.Cause }

// GRPCStatus gives the error the code of the context's: the caller has no more time.
func (e *NoPlaceError) GRPCStatus() *status.Status {
	return status.New(status.FromContextError(e.Cause).Code(), e.Error())
}

// NotSent reports whether the error is that of a call that never left for the node, which did nothing
// because of it.
func NotSent(err error) bool {
	var noPlace *NoPlaceError
	return IsNotConnected(err) || errors.As(err, &noPlace)
}

// Reason returns lvmd's own reason for an error (names.Reason…), or "" for
// errors that do not come from lvmd but from the way to it.
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

// tooLarge reports whether a node sent more than is read of one message: the error is gRPC's own,
// not lvmd's.
func tooLarge(err error) bool {
	return status.Code(err) == codes.ResourceExhausted && Reason(err) == ""
}

// MayHaveHappened reports whether a call that returned err may have had effect
// on the node, or may still have: its answer was lost or could not be read, it ran
// out of time, or another operation on the same volume runs. Errors that lvmd
// returned after the operation ended are final.
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
		// lvmd's have a reason and are final. gRPC's own are of a broken connection, or of
		// an answer that is too large or no message: the node may have acted.
		return Reason(err) == ""
	case codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.Unknown:
		return true
	default:
		return false
	}
}

// Message returns the text of an error as a user should see it: lvmd's own
// words without gRPC's wrapping.
func Message(err error) string {
	if s, ok := status.FromError(err); ok && s.Code() != codes.OK {
		return s.Message()
	}
	return err.Error()
}
