"""What users of other libraries know by name: l5kit's data layer, and the orders of MosaicML Streaming."""
