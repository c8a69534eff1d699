package cluster

import (
	"fmt"
	"regexp"

	v1 "k8s.io/api/core/v1"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/fleet"
)

// NotConnectedAdvice is what to do about a node that cannot be asked.
const NotConnectedAdvice = "is its Pod of the DaemonSet carve-node running? If the node will never come back, delete its Node object"

// OutcomeUnknownAdvice is what is awaited of a node that may hold a volume and cannot be asked.
const OutcomeUnknownAdvice = "waiting for it to come back, for its Node object to be deleted, or for the taint " + v1.TaintNodeOutOfService

// generalAdvice is what to do about a node's refusal, by lvmd's reason, whatever
// was asked of the node. What depends on that is said by the caller.
var generalAdvice = func() map[string]string {
	advice := map[string]string{}
	for _, r := range names.ErrorReasons {
		if r.General {
			advice[r.Reason] = r.Remedy
		}
	}
	return advice
}()

// ends matches both ends of a connection in the text of an error.
var ends = regexp.MustCompile(`(read|write) tcp [^ ]+->[^ ]+: `)

// Words are a node's error as a user should see it. They are the same at each attempt that fails
// alike, by which Kubernetes counts Events: the ports of the connection are others.
func Words(err error) string { return ends.ReplaceAllString(fleet.Message(err), "") }

// Refusal is a node's error in words for the user: where, what, and what to do.
func Refusal(node string, err error) string {
	if fleet.IsNotConnected(err) {
		return err.Error() + "; " + NotConnectedAdvice
	}
	text := fmt.Sprintf("node %s: %s", node, Words(err))
	if advice := generalAdvice[fleet.Reason(err)]; advice != "" {
		text += "; " + advice
	}
	return text
}
