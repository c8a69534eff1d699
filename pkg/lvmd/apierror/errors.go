package apierror

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/fairqueue"
)

// Error is an error as callers of the service see it: a gRPC code and an ErrorInfo. It
// unwraps to its cause.
type Error struct {
	code     codes.Code
	reason   string
	message  string
	metadata map[string]string
	cause    error
}

func (e *Error) Error() string {
	if e.cause != nil {
		return e.message + ": " + e.cause.Error()
	}
	return e.message
}

func (e *Error) Unwrap() error { return e.cause }

// GRPCStatus makes gRPC send the code and the details.
func (e *Error) GRPCStatus() *status.Status {
	s := status.New(e.code, e.Error())
	if e.reason == "" {
		return s
	}
	detailed, err := s.WithDetails(&errdetails.ErrorInfo{
		Reason: e.reason, Domain: names.ErrorDomain, Metadata: maps.Clone(e.metadata),
	})
	if err != nil {
		// Only an OK status cannot carry details.
		return s
	}
	return detailed
}

// InvalidField is INVALID_ARGUMENT for a field of a request.
func InvalidField(field, format string, args ...any) error {
	return &Error{
		code: codes.InvalidArgument, reason: names.ReasonInvalidField,
		message: field + ": " + fmt.Sprintf(format, args...), metadata: map[string]string{"field": field},
	}
}

// FormatRefused is INVALID_ARGUMENT for settings with which no file system can be made, for why.
func FormatRefused(settings string, cause error) error {
	return &Error{
		code: codes.InvalidArgument, reason: names.ReasonFormatRefused,
		message: fmt.Sprintf("no file system can be made with the settings %q (parameters %s*)", settings, names.ParamMkfsPrefix), cause: cause,
	}
}

// VolumeNotFound is NOT_FOUND for a volume's id or name.
func VolumeNotFound(what string) error {
	return &Error{code: codes.NotFound, reason: names.ReasonVolumeNotFound, message: fmt.Sprintf("no volume %q on this node", what)}
}

// SnapshotNotFound is NOT_FOUND for a snapshot's id or name.
func SnapshotNotFound(what string) error {
	return &Error{code: codes.NotFound, reason: names.ReasonSnapshotNotFound, message: fmt.Sprintf("no snapshot %q on this node", what)}
}

// IsNotFound reports whether an error has the code NOT_FOUND.
func IsNotFound(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.code == codes.NotFound
}

// NotThin is FAILED_PRECONDITION for what only thin volumes can do.
func NotThin(format string, args ...any) error {
	return &Error{code: codes.FailedPrecondition, reason: names.ReasonNotThin, message: fmt.Sprintf(format, args...)}
}

// VolumeLeftAlone is FAILED_PRECONDITION for a volume with tags of Carve that are not taken for
// those of a volume, for why.
func VolumeLeftAlone(id, group, why string) error {
	return &Error{
		code: codes.FailedPrecondition, reason: names.ReasonVolumeLeftAlone,
		message: fmt.Sprintf("volume %s of volume group %q is left alone: %s", id, group, why),
	}
}

// ClassNotFound is NOT_FOUND for a device class.
func ClassNotFound(format string, args ...any) error {
	return &Error{code: codes.NotFound, reason: names.ReasonClassNotFound, message: fmt.Sprintf(format, args...)}
}

// RequestDiffers is ALREADY_EXISTS for a name that an earlier request has, which asked for
// something else.
func RequestDiffers(name, difference string) error {
	return &Error{
		code: codes.AlreadyExists, reason: names.ReasonRequestDiffers,
		message: fmt.Sprintf("volume %q exists and was requested otherwise: %s", name, difference),
	}
}

// NoSpace is RESOURCE_EXHAUSTED: there is too little free space.
func NoSpace(format string, args ...any) error {
	return &Error{code: codes.ResourceExhausted, reason: names.ReasonNoSpace, message: fmt.Sprintf(format, args...)}
}

// SizeOutOfRange is OUT_OF_RANGE: no size fits between what is required and the limit.
func SizeOutOfRange(format string, args ...any) error {
	return &Error{code: codes.OutOfRange, reason: names.ReasonSizeOutOfRange, message: fmt.Sprintf(format, args...)}
}

// VolumeInUse is FAILED_PRECONDITION for a volume that is open or mounted.
func VolumeInUse(id string, cause error) error {
	return &Error{
		code: codes.FailedPrecondition, reason: names.ReasonVolumeInUse,
		message: fmt.Sprintf("volume %s is open or mounted", id), cause: cause,
	}
}

// VolumeKept is FAILED_PRECONDITION for a volume that is not provisional.
func VolumeKept(id string) error {
	return &Error{
		code: codes.FailedPrecondition, reason: names.ReasonVolumeKept,
		message: fmt.Sprintf("volume %s is not provisional: a Pod got it, or a PersistentVolume named it", id),
	}
}

// HasDependents is FAILED_PRECONDITION for a volume on which other logical volumes depend; which
// says what they are.
func HasDependents(id, which string) error {
	return &Error{
		code: codes.FailedPrecondition, reason: names.ReasonHasDependents,
		message: fmt.Sprintf("volume %s can be neither deleted nor grown: %s", id, which),
	}
}

// VolumeWritten is FAILED_PRECONDITION for the source of a copy that was written to.
func VolumeWritten(id string) error {
	return &Error{
		code: codes.FailedPrecondition, reason: names.ReasonVolumeInUse,
		message: fmt.Sprintf("volume %s was written to while it was copied: nothing may use it until the copy is complete; thin volumes can be cloned while they are used", id),
	}
}

// WritesNotCounted is FAILED_PRECONDITION for the source of a copy of which the kernel does not
// count what is written to it: whether the copy would be of one point in time is not known.
// lvmd makes the kernel count when a copy begins.
func WritesNotCounted(id string, cause error) error {
	return &Error{
		code: codes.FailedPrecondition, reason: names.ReasonWritesNotCounted,
		message: fmt.Sprintf("volume %s cannot be copied: whether it is written to meanwhile would not be seen: %v: "+
			"let lvmd write to that file, and leave 1 in it as long as the copy runs", id, cause),
	}
}

// OperationPending is ABORTED: the caller is to try again.
func OperationPending(format string, args ...any) error {
	return &Error{code: codes.Aborted, reason: names.ReasonOperationPending, message: fmt.Sprintf(format, args...)}
}

// DeviceMissing is UNAVAILABLE for a volume group, or a disk of it, that is missing.
func DeviceMissing(format string, args ...any) error {
	return &Error{code: codes.Unavailable, reason: names.ReasonDeviceMissing, message: fmt.Sprintf(format, args...)}
}

// NotResponding is UNAVAILABLE for a volume group for which LVM does not answer. Nothing was
// begun: callers may ask another node at once.
func NotResponding(format string, args ...any) error {
	return &Error{code: codes.Unavailable, reason: names.ReasonNotResponding, message: fmt.Sprintf(format, args...)}
}

// Begun is for errors of an operation that had effects already. One that says that nothing was
// begun becomes that of a command that timed out, whose outcome is unknown.
func Begun(err error) error {
	e, ok := errors.AsType[*Error](err)
	if !ok || e.reason != names.ReasonNotResponding {
		return err
	}
	return &Error{code: codes.DeadlineExceeded, reason: names.ReasonCommandTimedOut, message: e.message, cause: e.cause}
}

// LeaderSuperseded is FAILED_PRECONDITION for a change that an earlier leader than the newest asks for.
func LeaderSuperseded(format string, args ...any) error {
	return &Error{code: codes.FailedPrecondition, reason: names.ReasonLeaderSuperseded, message: fmt.Sprintf(format, args...)}
}

// WrongTransport is PERMISSION_DENIED for a method that the transport of the call does not serve.
func WrongTransport(format string, args ...any) error {
	return &Error{code: codes.PermissionDenied, reason: names.ReasonWrongTransport, message: fmt.Sprintf(format, args...)}
}

// ErrNotStored is matched by errors of writes to the journal, which then had no effect.
var ErrNotStored = errors.New("the journal cannot be written")

// ErrStopping is the error of operations in flight when lvmd stops.
var ErrStopping error = &Error{code: codes.Unavailable, message: "lvmd is stopping"}

// Reworded returns an error as it is, but for words in its text that are others at each attempt,
// such as a new volume's id: old and new come in pairs. Kubernetes counts Events whose text is the
// same, and keeps all others.
func Reworded(err error, pairs ...string) error {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return err
	}
	reworded := *e
	reworded.message, reworded.cause = e.Error(), nil
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i] != "" {
			reworded.message = strings.ReplaceAll(reworded.message, pairs[i], pairs[i+1])
		}
	}
	return &reworded
}

// From turns any error of an operation into one with a code; doing says what was attempted. It
// returns nil for nil, and an *Error as it is.
func From(doing string, err error) error {
	if err == nil {
		return nil
	}
	if f, ok := errors.AsType[*Error](err); ok {
		return f
	}
	for _, m := range []struct {
		err    error
		code   codes.Code
		reason string
	}{
		{lvm.ErrNoSpace, codes.ResourceExhausted, names.ReasonNoSpace},
		{lvm.ErrDeviceMissing, codes.Unavailable, names.ReasonDeviceMissing},
		{lvm.ErrUnavailable, codes.Unavailable, names.ReasonDeviceMissing},
		// The model has it: its disks are gone, or fail, or it was removed behind
		// our back, which the scan that follows finds.
		{lvm.ErrNotFound, codes.Unavailable, names.ReasonDeviceMissing},
		{unix.EIO, codes.Unavailable, names.ReasonDeviceMissing},
		{lvm.ErrTimedOut, codes.DeadlineExceeded, names.ReasonCommandTimedOut},
		{lvm.ErrBusy, codes.FailedPrecondition, names.ReasonVolumeInUse},
		{lvm.ErrHasDependents, codes.FailedPrecondition, names.ReasonHasDependents},
		{fairqueue.ErrFull, codes.Aborted, names.ReasonOperationPending},
		{fairqueue.ErrTimedOut, codes.Aborted, names.ReasonOperationPending},
		{ErrNotStored, codes.Unavailable, ""},
		{context.Canceled, codes.Canceled, ""},
		{context.DeadlineExceeded, codes.DeadlineExceeded, ""},
	} {
		if errors.Is(err, m.err) {
			return &Error{code: m.code, reason: m.reason, message: doing, cause: err}
		}
	}
	return &Error{code: codes.Internal, reason: names.ReasonCommandFailed, message: doing, cause: err}
}
