package names

// ErrorReason describes a reason of lvmd's errors. docs/reference/errors.md is generated from
// ErrorReasons.
type ErrorReason struct {
	// Reason is the one in the error's google.rpc.ErrorInfo.
	Reason string
	// Code is the name of the error's gRPC status code.
	Code string
	// Meaning is Markdown.
	Meaning string
	// The controller appends Remedy to a node's rejection if it is General: right for any
	// request.
	Remedy  string
	General bool
}

// ErrorReasons are all reasons.
var ErrorReasons = []ErrorReason{
	{ReasonInvalidField, "InvalidArgument", "A field of the request is malformed. The metadata `field` names it.", "correct the field that the message names", false},
	{ReasonFormatRefused, "InvalidArgument", "The file system cannot be made with the settings of the request on this node's disks. The message has the words of mkfs, or names the disks' sectors.", "correct the parameters `carve.csi.local/mkfs-…`; the controller tries the other nodes", false},
	{ReasonVolumeNotFound, "NotFound", "The node has no such volume.", "see whether the volume is on another node, or its disk is missing (carve-lvmd volumes)", false},
	{ReasonSnapshotNotFound, "NotFound", "The node has no such snapshot.", "see which snapshots there are (carve-lvmd snapshots)", false},
	{ReasonClassNotFound, "NotFound", "The node does not offer the device class.", "name a class that the node has (carve-lvmd classes), or add the class to its configuration", false},
	{ReasonRequestDiffers, "AlreadyExists", "A volume or snapshot of the name exists, with other properties. The message names the difference.", "use another name; delete what has this one only if its data is not needed", false},
	{ReasonNoSpace, "ResourceExhausted", "There is not enough free space, of whatever kind: data, metadata, thin pool, reserve, the share of inline volumes.", "free space, extend the volume group, or raise `inlinePercent`; the controller tries another node", false},
	{ReasonSizeOutOfRange, "OutOfRange", "`limit_bytes` leaves no possible size, or a volume is to become larger than all that its device class has on the node.", "allow a size that is a multiple of the class' unit; ask for less", false},
	{ReasonVolumeInUse, "FailedPrecondition", "The volume is open or mounted.", "stop what uses it", false},
	{ReasonVolumeKept, "FailedPrecondition", "Only a volume that no Pod got and no PersistentVolume named was to be deleted, and one did.", "nothing: the volume stays", false},
	{ReasonWritesNotCounted, "FailedPrecondition", "The kernel does not count what is written to the source of a copy: its `queue/iostats` was set to 0 while the copy ran, or lvmd could not set it to 1.", "let lvmd write to the file that the message names, and leave 1 in it as long as a copy runs", false},
	{ReasonNotThin, "FailedPrecondition", "Only thin volumes have snapshots, and a snapshot is restored in its own pool.", "use the StorageClass of the source", false},
	{ReasonVolumeLeftAlone, "FailedPrecondition", "The volume's tags are those of a later version of Carve, or were changed by hand; or what should be on the volume is not found (condition ContentsNotFound).", "install that version on the node again, correct the tags (lvs -o +lv_tags), or restore what is on the volume", false},
	{ReasonLeaderSuperseded, "FailedPrecondition", "A controller asked that led before another one.", "the present leader asks again; after the cluster was restored from a backup of etcd, delete the Lease carve-controller and restart the controller", true},
	{ReasonWrongTransport, "PermissionDenied", "The uplink does not serve the method to the controller, or the unix socket does not serve it to programs on the node. The message says which of the two does.", "call it as the message says: lvmd's subcommands use the unix socket", false},
	{ReasonHasDependents, "FailedPrecondition", "Another logical volume, such as an administrator's snapshot, depends on the volume: deleting or growing the volume would harm it. The message names it.", "remove the logical volume that the message names, as the message says", false},
	{ReasonOperationPending, "Aborted", "Another operation on the volume is running, or too many wait for the volume group.", "nothing: the call is repeated", false},
	{ReasonDeviceMissing, "Unavailable", "The volume group or a disk of it is missing, or a disk fails.", "look at the disks of its volume group there (vgs, dmesg)", true},
	{ReasonNotResponding, "Unavailable", "LVM does not answer for the volume group, and nothing was begun.", "LVM does not answer there; look at the node's disks (dmesg)", true},
	{ReasonCommandTimedOut, "DeadlineExceeded", "LVM did not answer in time. What was begun may have had effect.", "LVM does not answer there; look at the node's disks (dmesg)", true},
	{ReasonCommandFailed, "Internal", "LVM failed in another way.", "the log of lvmd there says more", true},
}
