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

// IsNotConnected tells a call that was never sent, for want of a connection.
func IsNotConnected(err error) bool {
	var e *NotConnectedError
	return errors.As(err, &e)
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

// MayHaveHappened tells whether a call that returned err may have had effect
// on the node, or may still have: its answer was lost, it ran out of time, or
// another operation on the same volume runs. Errors that lvmd returned after
// it made up its mind are final.
func MayHaveHappened(err error) bool {
	if err == nil {
		return true
	}
	if IsNotConnected(err) {
		return false
	}
	s, ok := status.FromError(err)
	if !ok {
		return true // not from the node: nobody knows
	}
	switch s.Code() {
	case codes.Unavailable:
		return Reason(err) == "" // lvmd's DEVICE_MISSING is final, a broken transport is not
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
