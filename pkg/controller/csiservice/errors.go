package csiservice

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/fleet"
)

// failure is an error of ours, whose code is known where it arises.
type failure struct {
	code codes.Code
	text string
}

func (f *failure) Error() string { return f.text }

func fail(code codes.Code, format string, args ...any) error {
	return &failure{code, fmt.Sprintf(format, args...)}
}

func invalid(field, format string, args ...any) error {
	return fail(codes.InvalidArgument, field+": "+format, args...)
}

// nodeError is what a node answered, or that it could not be asked.
type nodeError struct {
	node  string
	cause error
}

func (e *nodeError) Error() string { return "node " + e.node + ": " + fleet.Message(e.cause) }
func (e *nodeError) Unwrap() error { return e.cause }

func onNode(node string, err error) error {
	if err == nil {
		return nil
	}
	return &nodeError{node, err}
}

// Status gives an error its gRPC code; it is the only place that does. What
// the socket answers went through it already.
func Status(err error) error {
	var own *failure
	var node *nodeError
	switch {
	case errors.As(err, &own):
		return status.Error(own.code, err.Error())
	case errors.As(err, &node):
		return status.Error(codeOf(node.cause), err.Error())
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, err.Error())
	}
	if _, ok := status.FromError(err); ok {
		return err // gRPC's own: not implemented
	}
	return status.Error(codes.Internal, err.Error())
}

// codeOf is CSI's code for a node's error. lvmd's are CSI's but where CSI means
// something else by it.
func codeOf(err error) codes.Code {
	if fleet.IsNotConnected(err) {
		return codes.Unavailable
	}
	if fleet.Reason(err) == names.ReasonClassNotFound {
		return codes.InvalidArgument // NotFound would be the source's
	}
	switch code := status.Code(err); code {
	case codes.Unknown, codes.Internal, codes.ResourceExhausted, codes.DataLoss:
		if fleet.MayHaveHappened(err) {
			return codes.Unavailable // callers take the others for the node's last word
		}
		return code
	default:
		return code
	}
}
