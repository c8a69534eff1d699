package cluster

import (
	"fmt"
	"regexp"

	v1 "k8s.io/api/core/v1"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/fleet"
)

// NotConnectedAdvice is the advice about a node without uplink.
const NotConnectedAdvice = "is its Pod of the DaemonSet carve-node running? If the node will never come back, delete its Node object"

// OutcomeUnknownAdvice names the events that end the wait for a node that may hold a volume and
// cannot be asked.
const OutcomeUnknownAdvice = "waiting for it to come back, for its Node object to be deleted, or for the taint " + v1.TaintNodeOutOfService

// generalAdvice maps lvmd's reasons to the advice that holds for every request. The caller adds
// advice that depends on the request.
var generalAdvice = func() map[string]string {
	advice := map[string]string{}
	for _, r := range names.ErrorReasons {
		if r.General {
			advice[r.Reason] = r.Remedy
		}
	}
	return advice
}()

// ends matches the two ends of a connection in an error.
var ends = regexp.MustCompile(`(read|write) tcp [^ ]+->[^ ]+: `)

// Words returns a node's error for users. It drops the ports of the connection, which differ at
// each attempt: Kubernetes only merges Events with the same text.
func Words(err error) string { return ends.ReplaceAllString(fleet.Message(err), "") }

// Refusal returns a node's error for users: where, what, and what to do.
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
