// Package names holds the strings that Carve shares with Kubernetes and its users, and the
// reasons of lvmd's errors.
package names

const (
	// Driver is the CSI driver's name: StorageClass.provisioner, CSIDriver.metadata.name.
	Driver = "carve.csi.local"

	// TopologyNode is the CSI topology key. Its value is the Kubernetes node's name.
	TopologyNode = "topology.carve.csi.local/node"

	// Prefix starts Carve's own StorageClass parameters, labels, annotations and taints.
	Prefix = "carve.csi.local/"

	// ParamDeviceClass is the StorageClass parameter for the device class; empty means each
	// node's default class.
	ParamDeviceClass = Prefix + "device-class"

	// ParamFSType is the upstream StorageClass parameter for the file system.
	ParamFSType = "csi.storage.k8s.io/fstype"

	// ParamOnNodeLoss is the StorageClass parameter, copied to PersistentVolumes as an
	// annotation, for claims whose node is lost: NodeLossKeep (default) or NodeLossRecreate.
	ParamOnNodeLoss = Prefix + "on-node-loss"
	// NodeLossKeep leaves the claim bound: the node may return.
	NodeLossKeep = "keep"
	// NodeLossRecreate deletes the claim, so that its owner recreates it elsewhere.
	NodeLossRecreate = "recreate"

	// ParamPodVolumes is the StorageClass parameter for the nodeAffinity of generic ephemeral
	// volumes: PodVolumesPinned (default) or PodVolumesMovable.
	ParamPodVolumes = Prefix + "pod-volumes"
	// PodVolumesPinned sets one, as for other volumes.
	PodVolumesPinned = "pinned"
	// PodVolumesMovable sets none, so that a Pod's node can be removed.
	PodVolumesMovable = "movable"

	// TaintScaleDownCandidate is the key of the PreferNoSchedule taint by which the Cluster
	// Autoscaler marks nodes that it will remove if they stay unneeded.
	TaintScaleDownCandidate = "DeletionCandidateOfClusterAutoscaler"
	// TaintToBeDeleted is the key of its taint on nodes that it drains and removes.
	TaintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

	// AnnotationVolumeGroup is on PersistentVolumes: the volume group as NAME/UUID. It shows
	// whether a node returned with its own disks.
	AnnotationVolumeGroup = Prefix + "volume-group"
	// AnnotationTemplateCapacity is on StorageClasses, for the Cluster Autoscaler: the
	// capacity of an empty node by kind, KIND=SIZE separated by commas. For other kinds their
	// empty nodes' reports count.
	AnnotationTemplateCapacity = Prefix + "template-capacity"
	// LabelTemplateNode is "true" on the Cluster Autoscaler's hypothetical nodes.
	LabelTemplateNode = "cluster-autoscaler.kubernetes.io/template-node"
	// AnnotationHeldBack is on CSIStorageCapacity objects whose capacity is zero because
	// creates failed on the node: the end of that, RFC 3339. The next leader reads it.
	AnnotationHeldBack = Prefix + "held-back-until"
	// ConditionVolumeMissing is the type of the condition of a claim whose node lacks its
	// volume.
	ConditionVolumeMissing = Prefix + "VolumeMissing"

	// ParamPlacement is the StorageClass parameter for the preference among nodes with enough
	// free space, in immediate binding and carve-scheduler: a policy of pkg/scheduler.
	ParamPlacement = Prefix + "placement"

	// AttributeSize is the required volumeAttribute of inline volumes with their size, a
	// quantity. ParamDeviceClass, ParamEncryption and ParamProfile are the others.
	AttributeSize = Prefix + "size"

	// ParamEncryption is the StorageClass parameter for encryption: EncryptionEphemeral,
	// EncryptionLUKS, or empty.
	ParamEncryption = Prefix + "encryption"
	// EncryptionEphemeral uses a random key known to the kernel only. Deletion of the volume
	// and a restart of the node destroy it.
	EncryptionEphemeral = "ephemeral"
	// EncryptionLUKS uses LUKS2 with a key from a Secret, so that the volume survives restarts
	// of its node.
	EncryptionLUKS = "luks"
	// ParamStageSecretName is the upstream StorageClass parameter for the name of the Secret
	// that the kubelet passes to the node plugin at each stage.
	ParamStageSecretName = "csi.storage.k8s.io/node-stage-secret-name"
	// ParamStageSecretNamespace is the one for the Secret's namespace.
	ParamStageSecretNamespace = "csi.storage.k8s.io/node-stage-secret-namespace"
	// SecretKey is the Secret's entry with the key.
	SecretKey = "key"
	// ParamEncryptionDiscards is the StorageClass parameter that passes discards of encrypted
	// volumes to the disk, "true" or "false".
	ParamEncryptionDiscards = Prefix + "encryption-discards"
	// AnnotationEmptied is on PersistentVolumes that lost their data with their key: the time
	// of the loss last reported to users, RFC 3339.
	AnnotationEmptied = Prefix + "emptied-at"

	// ParamProfile is the StorageClass parameter for the value of the data: "scratch", a
	// profile of pkg/filesystem, or empty.
	ParamProfile = Prefix + "profile"
	// ParamClaims is the StorageClass parameter for the claims to serve: ClaimsAny (default)
	// or ClaimsEphemeral (default of the profile scratch).
	ParamClaims = Prefix + "claims"
	// ClaimsEphemeral serves generic ephemeral volumes, whose claims belong to a Pod.
	ClaimsEphemeral = "ephemeral"
	// ClaimsAny serves every claim.
	ClaimsAny = "any"
	// ParamMkfsPrefix starts the StorageClass parameters for mkfs, followed by the name of a
	// setting of pkg/filesystem.
	ParamMkfsPrefix = Prefix + "mkfs-"

	// ParamIOReadBPS limits the bytes per second that each Pod reads from a volume, a quantity
	// or IOUnlimited. It is a parameter of StorageClasses and VolumeAttributesClasses.
	ParamIOReadBPS = Prefix + "io-read-bps"
	// ParamIOWriteBPS limits the bytes written.
	ParamIOWriteBPS = Prefix + "io-write-bps"
	// ParamIOReadIOPS limits each Pod's read requests per second.
	ParamIOReadIOPS = Prefix + "io-read-iops"
	// ParamIOWriteIOPS limits the write requests.
	ParamIOWriteIOPS = Prefix + "io-write-iops"
	// IOUnlimited means no limit, as in the kernel.
	IOUnlimited = "max"

	// TaintAgentNotReady is the key of the taint that a cluster's provisioner may put on new
	// nodes. The controller removes it once the agent is connected and the node's capacity
	// published.
	TaintAgentNotReady = Prefix + "agent-not-ready"
	// TaintAutoscaler is the same taint under a key known to the Cluster Autoscaler without
	// configuration: it treats a tainted node as starting.
	TaintAutoscaler = "startup-taint.cluster-autoscaler.kubernetes.io/carve"
	// TaintReadiness is the same taint under a key known to Karpenter.
	TaintReadiness = "readiness.k8s.io/carve"

	// LabelManagedBy marks our CSIStorageCapacity objects, value ManagedBy.
	LabelManagedBy = Prefix + "managed-by"
	// ManagedBy is the value of LabelManagedBy.
	ManagedBy = "carve-controller"

	// ControllerDeployment is the name of the controller's Deployment.
	ControllerDeployment = "carve-controller"
	// NodeServiceAccount is the name of the node agents' ServiceAccount.
	NodeServiceAccount = "carve-node"
	// UplinkService is the name of the Service that node agents dial.
	UplinkService = "carve-uplink"

	// Namespace is the default namespace of the installation.
	Namespace = "carve-system"

	// UplinkAudience is the audience of the service-account token that authenticates a node to
	// the controller.
	UplinkAudience = "carve-uplink"
	// UplinkALPN is the TLS application protocol of the uplink.
	UplinkALPN = "carve-uplink/1"
)

// Keys of the CSI VolumeContext, by which the controller informs the node plugin through the
// PersistentVolume.
const (
	// ContextDeviceClass holds the volume's device class.
	ContextDeviceClass = Prefix + "device-class"
	// ContextNode holds the volume's node if the PersistentVolume was made without
	// nodeAffinity. It is immutable.
	ContextNode = Prefix + "node"
)

// Reasons and domain of the google.rpc.ErrorInfo on lvmd's errors, see api/lvmd/v1/lvmd.proto.
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
