// Package names holds the strings that Carve shares with Kubernetes and with
// its users: the driver's name, label, annotation, taint and StorageClass
// parameter keys, and the reasons on lvmd's errors. It depends on nothing.
package names

const (
	// Driver is the CSI driver's name: StorageClass.provisioner, CSIDriver.metadata.name.
	Driver = "carve.csi.local"

	// TopologyNode is the CSI topology key. Its value is the Kubernetes node's name.
	TopologyNode = "topology.carve.csi.local/node"

	// Prefix starts every StorageClass parameter, label, annotation and taint that is ours.
	Prefix = "carve.csi.local/"

	// ParamDeviceClass is the StorageClass parameter that names the device class.
	// Unset or empty means each node's default class.
	ParamDeviceClass = Prefix + "device-class"

	// ParamFSType is the upstream StorageClass parameter for the file system.
	ParamFSType = "csi.storage.k8s.io/fstype"

	// ParamOnNodeLoss is the StorageClass parameter, and the annotation on
	// PersistentVolumes that it becomes, which says what is done with a claim whose
	// node is lost: NodeLossKeep, the default, or NodeLossRecreate.
	ParamOnNodeLoss = Prefix + "on-node-loss"
	// NodeLossKeep leaves the claim bound, for a node that may come back.
	NodeLossKeep = "keep"
	// NodeLossRecreate deletes the claim, for something to make it again elsewhere.
	NodeLossRecreate = "recreate"

	// ParamPodVolumes is the StorageClass parameter that says whether the volumes of generic
	// ephemeral volumes have a nodeAffinity: PodVolumesPinned, the default, or PodVolumesMovable.
	ParamPodVolumes = Prefix + "pod-volumes"
	// PodVolumesPinned gives them one, as all others have.
	PodVolumesPinned = "pinned"
	// PodVolumesMovable gives them none, so that a Pod's node can be removed.
	PodVolumesMovable = "movable"

	// TaintScaleDownCandidate is the key of the taint, of effect PreferNoSchedule, by which the Cluster
	// Autoscaler marks nodes that it will remove if they stay unneeded.
	TaintScaleDownCandidate = "DeletionCandidateOfClusterAutoscaler"
	// TaintToBeDeleted is the key of the one on nodes that it drains and removes.
	TaintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

	// AnnotationVolumeGroup is on PersistentVolumes, and has the volume group that
	// the volume lies in: NAME/UUID. By it a node that comes back with other disks
	// is distinguished from one that comes back with its own.
	AnnotationVolumeGroup = Prefix + "volume-group"
	// AnnotationTemplateCapacity is on StorageClasses, and has how much an empty node of a
	// kind has for volumes of the class, for the Cluster Autoscaler: KIND=SIZE, separated by
	// commas. Kinds that are not named have what their empty nodes report.
	AnnotationTemplateCapacity = Prefix + "template-capacity"
	// LabelTemplateNode is on the nodes that the Cluster Autoscaler makes up, value "true".
	LabelTemplateNode = "cluster-autoscaler.kubernetes.io/template-node"
	// AnnotationHeldBack is on CSIStorageCapacity objects whose capacity is zero because
	// creating volumes failed on the node, and has until when, RFC 3339. By it the next
	// leader knows.
	AnnotationHeldBack = Prefix + "held-back-until"
	// ConditionVolumeMissing is the type of the condition of a claim whose volume
	// its node does not have.
	ConditionVolumeMissing = Prefix + "VolumeMissing"

	// ParamPlacement is the StorageClass parameter that says which node immediate
	// binding and carve-scheduler prefer, of those that have free space: a policy of
	// pkg/scheduler.
	ParamPlacement = Prefix + "placement"

	// AttributeSize is the volumeAttribute with the size, a quantity, of a volume
	// that a Pod defines in its own specification. Required there.
	// ParamDeviceClass, ParamEncryption and ParamProfile are the others.
	AttributeSize = Prefix + "size"

	// ParamEncryption is the StorageClass parameter that has volumes encrypted:
	// EncryptionEphemeral, EncryptionLUKS, or nothing.
	ParamEncryption = Prefix + "encryption"
	// EncryptionEphemeral encrypts with a random key that only the kernel has. It
	// is gone when the volume is deleted or the node restarts.
	EncryptionEphemeral = "ephemeral"
	// EncryptionLUKS encrypts in LUKS2 format with a key that is in a Secret, so
	// that the volume outlives a restart of its node.
	EncryptionLUKS = "luks"
	// ParamStageSecretName is the upstream StorageClass parameter for the name of the
	// Secret that the kubelet hands to the node plugin with each stage.
	ParamStageSecretName = "csi.storage.k8s.io/node-stage-secret-name"
	// ParamStageSecretNamespace is the one for the Secret's namespace.
	ParamStageSecretNamespace = "csi.storage.k8s.io/node-stage-secret-namespace"
	// SecretKey is the entry in the Secret that holds the key.
	SecretKey = "key"
	// ParamEncryptionDiscards is the StorageClass parameter that lets discards of
	// encrypted volumes through to the disk, "true" or "false".
	ParamEncryptionDiscards = Prefix + "encryption-discards"
	// AnnotationEmptied is on PersistentVolumes whose contents were lost with
	// their key, and has when that was last reported to their users, RFC 3339.
	AnnotationEmptied = Prefix + "emptied-at"

	// ParamProfile is the StorageClass parameter that says what data are worth:
	// "scratch", a profile of pkg/filesystem, or nothing.
	ParamProfile = Prefix + "profile"
	// ParamClaims is the StorageClass parameter that says which claims get volumes:
	// ClaimsAny, the default, or ClaimsEphemeral, the default of the profile scratch.
	ParamClaims = Prefix + "claims"
	// ClaimsEphemeral serves generic ephemeral volumes, whose claims belong to a Pod.
	ClaimsEphemeral = "ephemeral"
	// ClaimsAny serves every claim.
	ClaimsAny = "any"
	// ParamMkfsPrefix starts the StorageClass parameters for how file systems are
	// made. Behind it is the name of a setting of pkg/filesystem.
	ParamMkfsPrefix = Prefix + "mkfs-"

	// ParamIOReadBPS limits how many bytes per second each Pod reads from a volume, a quantity.
	// It is a parameter of a StorageClass and of a VolumeAttributesClass; IOUnlimited lifts the
	// limit.
	ParamIOReadBPS = Prefix + "io-read-bps"
	// ParamIOWriteBPS does so for the bytes that are written.
	ParamIOWriteBPS = Prefix + "io-write-bps"
	// ParamIOReadIOPS limits how many requests to read per second each Pod makes of a volume.
	ParamIOReadIOPS = Prefix + "io-read-iops"
	// ParamIOWriteIOPS does so for the requests to write.
	ParamIOWriteIOPS = Prefix + "io-write-iops"
	// IOUnlimited is the value for no limit, as the kernel has it.
	IOUnlimited = "max"

	// TaintAgentNotReady is the key of the taint that a cluster's provisioner may
	// put on new nodes. The controller removes it once the node's agent is
	// connected and the node's capacity is published.
	TaintAgentNotReady = Prefix + "agent-not-ready"
	// TaintAutoscaler is the same under a key that the Cluster Autoscaler knows without being
	// configured: to it a node that has the taint has not started yet.
	TaintAutoscaler = "startup-taint.cluster-autoscaler.kubernetes.io/carve"
	// TaintReadiness is the same under a key that Karpenter knows.
	TaintReadiness = "readiness.k8s.io/carve"

	// LabelManagedBy marks the CSIStorageCapacity objects that we publish, value ManagedBy.
	LabelManagedBy = Prefix + "managed-by"
	// ManagedBy is the value of LabelManagedBy.
	ManagedBy = "carve-controller"

	// ControllerDeployment is the name of the controller's Deployment.
	ControllerDeployment = "carve-controller"
	// NodeServiceAccount is the name of the node agents' ServiceAccount.
	NodeServiceAccount = "carve-node"
	// UplinkService is the name of the Service that node agents dial.
	UplinkService = "carve-uplink"

	// Namespace is where Carve is installed by default.
	Namespace = "carve-system"

	// UplinkAudience is the audience of the service-account token with which a
	// node proves itself to the controller.
	UplinkAudience = "carve-uplink"
	// UplinkALPN is the TLS application protocol of the uplink.
	UplinkALPN = "carve-uplink/1"
)

// Keys of a volume's context: what the controller passes to the node plugin
// through the PersistentVolume (CSI VolumeContext).
const (
	// ContextDeviceClass holds the volume's device class.
	ContextDeviceClass = Prefix + "device-class"
	// ContextNode holds the node that has the volume, where the PersistentVolume was made
	// without nodeAffinity. It never changes.
	ContextNode = Prefix + "node"
)

// Reasons and domain of the google.rpc.ErrorInfo on lvmd's errors. The
// meaning of each is documented in api/lvmd/v1/lvmd.proto.
const (
	ErrorDomain = "lvmd.carve.csi.local"

	ReasonInvalidField     = "INVALID_FIELD"
	ReasonFormatRefused    = "FORMAT_REFUSED"
	ReasonVolumeNotFound   = "VOLUME_NOT_FOUND"
	ReasonSnapshotNotFound = "SNAPSHOT_NOT_FOUND"
	ReasonNotThin          = "NOT_THIN"
	ReasonWritesNotCounted = "WRITES_NOT_COUNTED"
	ReasonVolumeLeftAlone  = "VOLUME_LEFT_ALONE"
	ReasonClassNotFound    = "CLASS_NOT_FOUND"
	ReasonRequestDiffers   = "REQUEST_DIFFERS"
	ReasonNoSpace          = "NO_SPACE"
	ReasonSizeOutOfRange   = "SIZE_OUT_OF_RANGE"
	ReasonVolumeInUse      = "VOLUME_IN_USE"
	ReasonVolumeKept       = "VOLUME_KEPT"
	ReasonHasDependents    = "VOLUME_HAS_DEPENDENTS"
	ReasonLeaderSuperseded = "LEADER_SUPERSEDED"
	ReasonWrongTransport   = "WRONG_TRANSPORT"
	ReasonOperationPending = "OPERATION_PENDING"
	ReasonDeviceMissing    = "DEVICE_MISSING"
	ReasonNotResponding    = "GROUP_NOT_RESPONDING"
	ReasonCommandTimedOut  = "COMMAND_TIMED_OUT"
	ReasonCommandFailed    = "COMMAND_FAILED"
)
