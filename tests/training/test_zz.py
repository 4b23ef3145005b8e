import sys, time, numpy as np, pyarrow as pa, threading
from concurrent.futures import ThreadPoolExecutor
from seqlake.files.stores import open_store
from seqlake.shards import parquet
from seqlake.shards.columns import Columns
from seqlake.shards.files import parquet_shard
from seqlake.spec.column_types import Trajectory
from seqlake.spec.schema import Schema
from seqlake.training.fetch import Fetcher
from seqlake.training.shard_cache import ShardCache
SCHEMA=Schema({"state":Trajectory(dim=60)})
def test_speed(s3_bucket,tmp_path):
    put=open_store(s3_bucket.uri,storage=s3_bucket.storage)
    kind=SCHEMA.arrow.field("state").type
    shards=[]
    for n in range(4):
        w=parquet.create(tmp_path/"x.parquet",SCHEMA)
        T=1000
        vals=np.random.default_rng(n).normal(size=(150*T*60)).astype(np.float32)
        arr=pa.ListArray.from_arrays(np.arange(151,dtype=np.int32)*T,pa.FixedSizeListArray.from_arrays(vals,type=kind.value_type),type=kind)
        w.write(pa.record_batch([pa.array([f"{n}-{i}" for i in range(150)]),arr],names=["sequence_id","state"])); w.close()
        put.put(f"{n}.parquet",tmp_path/"x.parquet")
    blobs=[put.blob(f"{n}.parquet") for n in range(4)]
    total=sum(b.size for b in blobs)
    def plain():
        t=time.perf_counter(); 
        pieces=[(b,a,min(a+(16<<20),b.size)) for b in blobs for a in range(0,b.size,16<<20)]
        with ThreadPoolExecutor(12) as ex: list(ex.map(lambda p: len(p[0].ranges(np.array([p[1]]),np.array([p[2]]))[0]),pieces))
        return time.perf_counter()-t
    import cProfile,pstats
    from seqlake.training.shard_cache import sources as S, proof as P, cache as C
    acc={}
    def wrap(mod,name):
        o=getattr(mod,name)
        def w(*a,**k):
            t=time.perf_counter()
            try: return o(*a,**k)
            finally: acc[name]=acc.get(name,0)+time.perf_counter()-t
        setattr(mod,name,w)
    wrap(S.Source,"_fetch");wrap(S,"check_pages");wrap(S.Source,"_readable_in_place");wrap(S,"read_footer");wrap(C.ShardCache,"_publish");wrap(C.ShardCache,"reserve");wrap(S.Source,"_plan")
    for r in range(3):
        a=plain()
        t=time.perf_counter()
        cache=ShardCache(tmp_path/f"c{r}",limit=1<<31)
        f=Fetcher([Columns(parquet_shard(b),SCHEMA,{}) for b in blobs],SCHEMA,cache=cache)
        f.schedule(range(4))
        for n in range(4): f.take(n).release()
        b=time.perf_counter()-t
        print(acc);acc.clear();print(total>>20,"MB plain",a,"ours",b,"ratio",a/b, f.transfers.traffic, f.fetched)
        f.close(); cache.close()
